// The saving side of checkpoint.h.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "comm/exchange.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/files.h"
#include "train/checkpoint/history.h"
#include "train/checkpoint/saved_tensors.h"
#include "train/checkpoint/shard_writer.h"
#include "train/checkpoint/snapshot.h"
#include "train/health.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

// PEFT reads one file.
struct FilesOf {
  std::string stem;
  std::uint64_t max_bytes;
};
FilesOf weight_files(const EngineOptions& engine, const CheckpointOptions& options) {
  if (!engine.model.lora.on()) return {"model", options.max_shard_bytes};
  return {kAdapterStem, std::numeric_limits<std::uint64_t>::max()};
}

void announce(CheckpointWriter& writer, const FilesOf& files, const std::vector<SavedKind>& kinds,
              CheckpointPart part, const ParameterSet& set, const UpdateRules& rules) {
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const SavedKind& kind : kinds)
    if (kind.part == part)
      for (const Parameter& parameter : set.parameters())
        if (kind.has(parameter, rules))
          tensors.push_back({kind.name_of(parameter), kind.dtype, parameter.shape});
  writer.tensors(files.stem, tensors, files.max_bytes);
}

// The text files of a Hugging Face model in the given precision, or of an adapter.
void write_model_texts(CheckpointWriter& writer, const EngineOptions& options, DType precision,
                       const std::vector<Tokenizer::File>& files) {
  if (options.model.lora.on()) {
    writer.text(kAdapterConfig, write_peft_config(peft_config_of(options.model, options.base)));
  } else {
    writer.text("config.json", write_hf_config(options.model, precision));
    writer.text("generation_config.json", write_hf_generation_config(options.model));
  }
  for (const Tokenizer::File& file : files) writer.text(file.name, file.content);
}

// The model card describes the trained weights, not their average.
std::vector<Tokenizer::File> without_card(std::vector<Tokenizer::File> files) {
  std::erase_if(files, [](const Tokenizer::File& file) { return file.name == "README.md"; });
  return files;
}

std::int64_t bytes_of(const SavedKind& kind, const Sharding::Range& range) {
  return (range.end - range.begin) * static_cast<std::int64_t>(size_of(kind.dtype));
}

// By this rank.
std::int64_t bytes_to_write(const Engine& engine, const std::vector<SavedKind>& kinds,
                            const std::vector<StateSegment>& segments) {
  std::int64_t total = 0;
  for (const SavedKind& kind : kinds)
    for (const StateSegment& segment : segments)
      if (kind.has(segment)) total += bytes_of(kind, written_range(engine, segment));
  return total;
}

void write_contents(const CheckpointPaths& at, Engine& engine, const TrainerState& state,
                    const CheckpointOptions& options, const Snapshot* snapshot) {
  Communicator& host = engine.groups()[GroupKind::Checkpoint];
  const EngineOptions& engine_options = engine.options();
  const ParameterSet whole(engine_options.model);
  const UpdateRules& rules = engine.optimizer().rules();
  const std::vector<SavedKind> kinds = saved_kinds(engine, whole);
  const std::string trainer = state_to_json(state, engine_options.precision);
  std::optional<CheckpointWriter> model, average, optimizer;
  std::optional<ShardWriter> shards;
  together(host, [&] {
    model.emplace(host, at.model());
    write_model_texts(*model, engine_options, engine_options.precision, options.files);
    model->text("trainer.json", trainer);
    const FilesOf files = weight_files(engine_options, options);
    announce(*model, files, kinds, CheckpointPart::Model, whole, rules);
    if (engine.optimizer().state().has_ema()) {
      average.emplace(host, at.model() / kAverage);
      write_model_texts(*average, engine_options, accumulator_of(engine_options.precision),
                        without_card(options.files));
      announce(*average, files, kinds, CheckpointPart::Average, whole, rules);
    }
    optimizer.emplace(host, at.state());
    if (!options.config.empty()) optimizer->text("config.yaml", options.config);
    if (!options.keep_always.empty()) optimizer->text(kKeepMark, options.keep_always + "\n");
    if (!state.history.empty()) optimizer->text(kHistoryFile, history_to_json(state.history));
    if (host.rank() == 0)
      optimizer->text("lineage.json",
                      to_json(child_lineage(options.ancestors, next_sequence(at.folder),
                                            trainer + options.config)));
    announce(*optimizer, {"optimizer", options.max_shard_bytes}, kinds, CheckpointPart::State,
             whole, rules);
  });
  together(host,
           [&] { shards.emplace(engine, snapshot == nullptr ? &engine.backend() : nullptr); });
  const auto writer_of = [&](CheckpointPart part) -> CheckpointWriter& {
    return part == CheckpointPart::Model     ? *model
           : part == CheckpointPart::Average ? *average
                                             : *optimizer;
  };
  together(host, [&] {
    const std::vector<StateSegment> segments = saved_segments(engine);
    std::int64_t done = 0;
    const std::int64_t total = bytes_to_write(engine, kinds, segments);
    for (std::size_t k = 0; k < kinds.size(); ++k)
      for (std::size_t i = 0; i < segments.size(); ++i) {
        if (!kinds[k].has(segments[i])) continue;
        const Tensor elements = snapshot != nullptr
                                    ? snapshot->at(k, i)
                                    : written_elements(engine, kinds[k], segments[i]);
        shards->put(writer_of(kinds[k].part), kinds[k], segments[i].bucket,
                    written_range(engine, segments[i]), elements);
        done += bytes_of(kinds[k], written_range(engine, segments[i]));
        if (options.progress) options.progress(done, total);
      }
    shards->finish();
  });
  if (average) average->finish();
  model->finish();
  optimizer->finish();
}

}  // namespace

std::string state_to_json(const TrainerState& state, DType precision, int indent) {
  Json json{{"format", 1},
            {"step", state.step},
            {"tokens", state.tokens},
            {"samples", state.samples},
            {"stage", state.stage},
            {"stage_start", state.stage_start},
            {"seed", state.seed},
            {"data", state.data},
            {"precision", to_string(precision)},
            {"loss_scale",
             {{"scale", state.loss_scale.scale},
              {"good_steps", state.loss_scale.good_steps},
              {"hysteresis", state.loss_scale.hysteresis}}},
            {"skipped", state.skipped}};
  add_batches(json, state.batches);
  add_skipped(json, state.skipped_samples);
  if (!state.spikes.losses.empty() || state.spikes.rewinds > 0)
    json["spikes"] = {{"losses", state.spikes.losses},
                      {"rewinds", state.spikes.rewinds},
                      {"last_step", state.spikes.last_step}};
  if (!state.base.empty()) json["base"] = state.base;
  if (state.outliers > 0) json["outliers"] = state.outliers;
  if (!state.recent.losses.empty())
    json["recent"] = {{"losses", state.recent.losses}, {"norms", state.recent.norms}};
  return json.dump(indent) + "\n";
}

fs::path write_checkpoint(const fs::path& checkpoints, Engine& engine, const TrainerState& state,
                          const CheckpointOptions& options, const Snapshot* snapshot) {
  const CheckpointPaths target{checkpoints, checkpoint_name(state.step)};
  Communicator& host = engine.groups()[GroupKind::Checkpoint];
  const bool first = host.rank() == 0;
  // All ranks know of a failure inside together(); any other failure ends the job.
  const auto give_up = [&] [[noreturn]] (RankFailure failure) {
    if (first) withdraw_checkpoint(target);
    host.barrier();
    failure.kind = FailureKind::Error;
    failure.text =
        fmt::format("the checkpoint of step {} was not saved, earlier ones are unchanged: {}",
                    state.step, failure.text);
    throw SharedFailure(std::move(failure));
  };
  try {
    write_contents(target.with(".tmp"), engine, state, options, snapshot);
    together(host, [&] {
      if (first) publish_checkpoint(target);
    });
  } catch (const SharedFailure& error) {
    give_up(error.failure());
  } catch (const SharedUserError& error) {
    give_up(error.failure());
  }
  if (first) remove_old_checkpoints(target, options.keep);
  return target.model();
}

void check_finite(Engine& engine, const TrainerState& state) {
  if (!weights_are_finite(engine))
    throw Diverged(fmt::format(
        "the weights are not finite after step {}, so no checkpoint is saved", state.step));
}

fs::path save_checkpoint(const fs::path& checkpoints, Engine& engine, const TrainerState& state,
                         const CheckpointOptions& options) {
  check_finite(engine, state);
  return write_checkpoint(checkpoints, engine, state, options);
}

}  // namespace kintsugi
