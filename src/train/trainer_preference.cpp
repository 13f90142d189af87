// The preference pairs of a run (DPO): the log-probabilities of the reference model, which are read
// from files or computed at the start of the run, and the pairs of a batch.
#include <nlohmann/json.hpp>

#include "comm/exchange.h"
#include "core/log.h"
#include "core/units.h"
#include "model/adapter/model_files.h"
#include "train/initial_weights.h"
#include "train/trainer.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// RUN/reference.json: which model is the reference. After the first step the weights of the run are
// no longer those.
std::string reference_record(const std::string& model, const std::string& weights) {
  return nlohmann::ordered_json{{"model", model}, {"weights", weights}}.dump(1) + "\n";
}

std::string recorded_field(const std::string& record, const char* key, const fs::path& file) {
  try {
    return nlohmann::json::parse(record).at(key).get<std::string>();
  } catch (const nlohmann::json::exception&) {
    user_error("{} is damaged: restore it, or start again in another run.dir", file.string());
  }
}

// "+" and the values; empty: there are none.
std::string bytes_of_values(const std::optional<std::vector<double>>& values) {
  if (!values) return "";
  return "+" + std::string(reinterpret_cast<const char*>(values->data()),
                           values->size() * sizeof(double));
}

std::vector<double> values_of_bytes(const std::string& bytes) {
  std::vector<double> values((bytes.size() - 1) / sizeof(double));
  bytes.copy(reinterpret_cast<char*>(values.data()), values.size() * sizeof(double), 1);
  return values;
}

}  // namespace

void Trainer::find_reference_model(const std::optional<Start>& start) {
  const fs::path record = directory_ / "reference.json";
  const bool continues = start && !start->other_run;
  std::string text;
  together(host(), [&] {
    if (is_first() && continues && fs::exists(record)) text = read_text_file(record);
  });
  text = text_of(host(), 0, text);
  if (!text.empty()) {
    reference_.model = recorded_field(text, "model", record);
    reference_.weights = recorded_field(text, "weights", record);
    return;
  }
  reference_.model = start && start->other_run ? start->checkpoint.string() : config_.model_init;
  if (reference_.model.empty())
    user_error(
        "{} is missing, so the reference model of this run is unknown: restore the file, or set "
        "model.init to the model that the run started from",
        record.string());
  // A run directory may get newer checkpoints: the record names the one that the run started from.
  together(host(), [&] {
    std::error_code error;
    const fs::path found = fs::canonical(model_directory(reference_.model), error);
    if (error)
      user_error("cannot read the reference model {}: {}", reference_.model, error.message());
    reference_.model = found.string();
    if (is_adapter_directory(found))
      user_error(
          "objective dpo cannot begin from the adapters in {}, which its reference would need: "
          "merge them with `kintsugi model merge-adapter` and set model.init to the result",
          reference_.model);
  });
  reference_.weights =
      weights_fingerprint(host(), reference_.model, config_.model, config_.train.precision);
}

// Rank 0 reads for all.
void Trainer::read_references() {
  reference_.missing.clear();
  for (const std::span<const TokenShard> store : data_->stores()) {
    const auto infos = read_store_infos(store);
    for (std::size_t i = 0; i < store.size(); ++i) {
      const TokenShard& shard = store[i];
      if (reference_.table.has(shard)) continue;
      const ReferencePaths paths =
          reference_paths(shard, infos[i].get(), reference_.weights, directory_);
      std::string bytes;
      together(host(), [&] {
        if (!is_first()) return;
        auto values = read_reference(paths.beside_store, shard.sequences());
        if (!values) values = read_reference(paths.in_run, shard.sequences());
        bytes = bytes_of_values(values);
      });
      bytes = text_of(host(), 0, bytes);
      reference_.table.add(shard, bytes.empty() ? std::vector<double>() : values_of_bytes(bytes));
      if (bytes.empty()) reference_.missing.push_back({&shard, paths});
    }
  }
}

void Trainer::open_reference(const std::optional<Start>& start) {
  find_reference_model(start);
  read_references();
  if (reference_.missing.empty())
    return log_info("reference: the log-probabilities of {} were computed before",
                    reference_.model);
  if (!start || start->other_run) return;  // load_start() loads the reference model
  const std::string gone = reference_.missing.front().paths.beside_store.string();
  together(host(), [&] {
    if (!fs::exists(reference_.model))
      user_error(
          "{} is gone, and so is the reference model {} to compute it again: restore one of them",
          gone, reference_.model);
  });
  if (weights_fingerprint(host(), reference_.model, config_.model, config_.train.precision) !=
      reference_.weights)
    user_error(
        "{} is gone, and {} no longer has the weights that the run started from: restore one of "
        "them",
        gone, reference_.model);
  log_warning("{} is gone: it is computed again with {}", gone, reference_.model);
  Engine initial(backend_, backend_, engine_options(config_, groups_->ranks()), *groups_);
  initial.prepare();
  InitialWeightsOptions options{.unused = initial_options(config_).unused};
  together(host(), [&] {
    if (!config_.model_init.empty()) options.subtokens = subtokens_of(config_, data_->tokenizer());
  });
  load_initial_weights(reference_.model, initial, options);
  complete_reference(initial);
}

void Trainer::complete_reference(Engine& initial) {
  std::int64_t documents = 0, before = 0;
  for (const auto& [shard, paths] : reference_.missing) documents += shard->documents();
  const auto begin = Clock::now();
  std::optional<Progress> progress;
  if (is_first()) progress.emplace("reference", documents, "pairs");
  for (const auto& [shard, paths] : reference_.missing) {
    const auto show = [&](std::int64_t done) {
      if (progress) progress->set(before + done);
    };
    std::vector<double> values = compute_reference(initial, *shard, show);
    together(host(), [&, &paths = paths] {
      if (is_first()) write_reference(paths, values);
    });
    reference_.table.add(*shard, std::move(values));
    before += shard->documents();
  }
  progress.reset();
  if (!reference_.missing.empty())
    log_info("reference: log-probabilities of {} in {} by {}", format_number(documents, "pair"),
             format_duration(seconds_since(begin)), reference_.model);
  reference_.missing.clear();
}

void Trainer::write_reference_record() const {
  if (is_first() && preference())
    write_file_atomically(directory_ / "reference.json",
                          reference_record(reference_.model, reference_.weights));
}

void Trainer::record_rewards(const Rewards& rewards) {
  record_.reward_chosen = rewards.chosen;
  record_.reward_rejected = rewards.rejected;
  record_.reward_margin = rewards.chosen - rewards.rejected;
  record_.reward_accuracy = rewards.accuracy;
}

void Trainer::Score::add(const LossSums& sums) {
  nats += sums.loss;
  rewards.chosen += sums.rewards.chosen;
  rewards.rejected += sums.rewards.rejected;
  rewards.accuracy += sums.rewards.accuracy;
}

std::span<const TokenSequence> Trainer::pairs_of(const SampleBatch& batch) {
  pairs_.clear();
  for (const SampleSequence& one : batch.sequences)
    pairs_.push_back({.row = one.row,
                      .begin = one.begin,
                      .end = std::min(one.end, config_.data.sequence_length),
                      .reference = reference_.table.at(*one.shard, one.sequence)});
  return pairs_;
}

}  // namespace kintsugi
