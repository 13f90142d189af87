#include "train/checkpoint/history.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "model/model_fields.h"

namespace kintsugi {

using OrderedJson = nlohmann::ordered_json;

namespace {

// That BatchSchedule takes it.
bool is_valid(const PastBatch& batch) {
  const BatchRamp& ramp = batch.ramp;
  const bool rises = ramp.start >= 0 && ramp.start <= batch.full && ramp.increment > 0 &&
                     ramp.samples > 0 &&
                     (batch.full - ramp.start) / ramp.increment <= kMaxRampIncrements;
  return batch.full > 0 && (ramp == BatchRamp{} || rises) && batch.until.steps >= 0 &&
         batch.until.samples >= 0;
}

}  // namespace

void add_batches(OrderedJson& json, const std::vector<PastBatch>& batches) {
  for (const PastBatch& one : batches) {
    OrderedJson batch{{"global", one.full}};
    if (one.ramp.on())
      batch["ramp"] = {{"start", one.ramp.start},
                       {"increment", one.ramp.increment},
                       {"samples", one.ramp.samples}};
    batch["until"] = {{"steps", one.until.steps}, {"samples", one.until.samples}};
    json["batches"].push_back(std::move(batch));
  }
}

std::vector<PastBatch> read_batches(const OrderedJson& json) {
  std::vector<PastBatch> batches;
  if (!json.contains("batches")) return batches;
  for (const OrderedJson& one : json.at("batches")) {
    PastBatch& batch = batches.emplace_back();
    batch.full = one.at("global");
    if (one.contains("ramp")) {
      const OrderedJson& ramp = one.at("ramp");
      batch.ramp = {ramp.at("start"), ramp.at("increment"), ramp.at("samples")};
    }
    batch.until = {one.at("until").at("steps"), one.at("until").at("samples")};
    if (!is_valid(batch))
      user_error("the checkpoint is damaged: a past batch is {}; copy the checkpoint again",
                 one.dump());
  }
  return batches;
}

void add_skipped(OrderedJson& json, const std::vector<SkippedSamples>& skipped) {
  for (const SkippedSamples& one : skipped)
    json["skipped_samples"].push_back({{"at", one.at}, {"count", one.count}});
}

std::vector<SkippedSamples> read_skipped(const OrderedJson& json) {
  std::vector<SkippedSamples> skipped;
  if (!json.contains("skipped_samples")) return skipped;
  for (const OrderedJson& one : json.at("skipped_samples")) {
    skipped.push_back({one.at("at"), one.at("count")});
    if (skipped.back().at < 0 || skipped.back().count < 0)
      user_error("the checkpoint is damaged: it skips samples {}; copy the checkpoint again",
                 one.dump());
  }
  return skipped;
}

std::string history_to_json(const std::vector<PastStage>& history) {
  OrderedJson stages = OrderedJson::array();
  for (const PastStage& one : history) {
    stages.push_back({{"run", one.run},
                      {"stage", one.name},
                      {"first_step", one.first_step},
                      {"last_step", one.last_step},
                      {"tokens", one.tokens},
                      {"samples", one.samples},
                      {"data", one.data},
                      {"config", one.config}});
    add_batches(stages.back(), one.batches);
    add_skipped(stages.back(), one.skipped);
  }
  // Names may contain invalid UTF-8.
  return OrderedJson{{"stages", stages}}.dump(2, ' ', false,
                                              OrderedJson::error_handler_t::replace) +
         "\n";
}

std::vector<PastStage> read_history(const std::filesystem::path& state) {
  const std::filesystem::path path = state / kHistoryFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  try {
    const OrderedJson json = OrderedJson::parse(read_text_file(path));
    std::vector<PastStage> history;
    for (const OrderedJson& one : json.at("stages"))
      history.push_back({.run = one.at("run"),
                         .name = one.at("stage"),
                         .first_step = one.at("first_step"),
                         .last_step = one.at("last_step"),
                         .tokens = one.at("tokens"),
                         .samples = one.at("samples"),
                         .data = one.at("data"),
                         .batches = read_batches(one),
                         .skipped = read_skipped(one),
                         .config = one.at("config")});
    return history;
  } catch (const nlohmann::json::exception& reason) {
    user_error("{} is not a list of stages: {}; copy the checkpoint again", path.string(),
               reason.what());
  }
}

void check_shapes(const ModelConfig& saved, const ModelConfig& model,
                  const std::filesystem::path& checkpoint) {
  const std::string difference = other_shape(saved, model);
  if (!difference.empty())
    user_error(
        "the checkpoint {} holds another model than the configuration: model.{} in the "
        "checkpoint; use the same model",
        checkpoint.string(), difference);
}

}  // namespace kintsugi
