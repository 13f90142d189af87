// The saving side of checkpoint.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/files.h"
#include "train/checkpoint/history.h"
#include "train/checkpoint/snapshot.h"
#include "train/engine.h"
#include "train/health.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kExchanged = std::int64_t{1}
                                    << 22;  // elements that a rank exchanges at a time

// A range of the whole tensor, and its index in the shards that the ranks exchanged.
struct Source {
  std::int64_t global = 0, count = 0;
  std::int64_t at = 0;
};

std::size_t largest_bytes(const ParameterSet& set) {
  std::int64_t most = 0;
  for (const Parameter& parameter : set.parameters())
    most = std::max(most, parameter.shape.elements());
  return static_cast<std::size_t>(most) * sizeof(double);
}

// Writes one rank's shards to the files of whole tensors. A shard of columns would be thousands of
// short ranges, so the ranks of a tensor group all-gather their shards and write whole rows in
// turns.
class ShardWriter {
 public:
  // Allocates all memory it will need. `device` is where the tensors are; without one, they are in
  // host memory and complete, and the writer may be used in another thread than the engine.
  ShardWriter(Engine& engine, Backend* device)
      : engine_(engine), device_(device), queue_(device, largest_bytes(engine.parameters())) {
    std::int64_t most = 0;  // elements exchanged or rounded at a time
    for (const Parameter& parameter : engine.parameters().parameters())
      if ((parameter.shard.ranks > 1 && parameter.shard.dimension > 0) ||
          (parameter.trained && engine.sharding().is_unrounded(parameter.bucket)))
        most =
            std::max({most, parameter.shape[1], std::min(kExchanged, parameter.shape.elements())});
    const auto ranks = static_cast<std::size_t>(engine.groups()[GroupKind::HostTp].size());
    const std::size_t bytes = static_cast<std::size_t>(most) * sizeof(double);
    shard_.resize(bytes);
    all_shards_.resize(bytes * ranks);
    joined_.resize(bytes * ranks);
  }

  // Writes elements `range` of the parameter buffer, which are in `bucket`, to the tensors of a
  // kind, rounded to its dtype. Collective over the tensor group, with the same range. Errors are
  // kept for finish(), so that no rank waits for one that has failed.
  void put(CheckpointWriter& writer, const SavedKind& kind, int bucket, Sharding::Range range,
           Tensor elements) {
    for (const Parameter& parameter : engine_.parameters().parameters()) {
      if (parameter.bucket != bucket) continue;
      const std::int64_t from = std::max(range.begin, parameter.offset),
                         to = std::min(range.end, parameter.offset + parameter.shape.elements());
      if (from >= to) continue;
      const Target target{writer, kind.name_of(parameter), parameter, kind.dtype};
      const Tensor part = elements.rows(from - range.begin, to - from);
      if (parameter.shard.ranks > 1 && parameter.shard.dimension > 0)
        put_rows(target, from - parameter.offset, part);
      else if (parameter.counted)
        put_ranges(target, from - parameter.offset, part);
    }
  }

  // Waits until everything is written, or throws the first error.
  void finish() {
    guarded([&] { queue_.finish(); });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Target {
    CheckpointWriter& writer;
    std::string name;
    const Parameter& parameter;
    DType dtype;
  };

  // These write elements of this rank's shard, from index `first` on.
  void put_ranges(const Target& target, std::int64_t first, const Tensor& elements) {
    const Parameter& parameter = target.parameter;
    guarded([&] {
      for_each_range(parameter.shard, parameter.global, engine_.parameters().tp_rank(), first,
                     first + elements.elements(), [&](const ShardRange& range) {
                       const Tensor part = elements.rows(range.local - first, range.count);
                       if (part.dtype() != target.dtype)
                         put_rounded(target, range.global, part);
                       else
                         target.writer.put(queue_, target.name, range.global, part);
                     });
    });
  }

  void put_rows(const Target& target, std::int64_t first, const Tensor& elements) {
    Communicator& group = engine_.groups()[GroupKind::HostTp];
    const std::int64_t width = target.parameter.shape[1], last = first + elements.elements();
    const std::int64_t step = std::max<std::int64_t>(1, kExchanged / width) * width;
    for (std::int64_t begin = first; begin < last;) {
      const std::int64_t end = std::min(last, begin / step * step + step);
      const Tensor part = elements.rows(begin - first, end - begin);
      guarded([&] { fetch(part, target.dtype); });
      // Also after an error, because the other ranks wait for it.
      const auto bytes = part.elements() * static_cast<std::int64_t>(size_of(target.dtype));
      group.wait(group.all_gather(Tensor(all_shards_.data(), DType::U8, {bytes * group.size()}),
                                  Tensor(shard_.data(), DType::U8, {bytes})));
      if (turn_++ % group.size() == group.rank()) guarded([&] { join_rows(target, begin, end); });
      begin = end;
    }
  }

  void put_rounded(const Target& target, std::int64_t global, const Tensor& elements) {
    for (std::int64_t first = 0; first < elements.elements(); first += kExchanged) {
      const Tensor part = elements.rows(first, std::min(kExchanged, elements.elements() - first));
      fetch(part, target.dtype);
      target.writer.put_copy(queue_, target.name, global + first,
                             Tensor(shard_.data(), target.dtype, part.shape()));
    }
  }

  // Copies at most kExchanged elements or a row to shard_ and rounds them.
  void fetch(const Tensor& elements, DType dtype) {
    if (device_ != nullptr)
      device_->download(shard_.data(), elements);
    else
      std::memcpy(shard_.data(), elements.data(), elements.bytes());
    if (elements.dtype() == dtype) return;
    KINTSUGI_CHECK(elements.dtype() == DType::F32 && dtype == DType::BF16, "{} rounded to {}",
                   to_string(elements.dtype()), to_string(dtype));
    for (std::size_t i = 0; i < static_cast<std::size_t>(elements.elements()); ++i) {  // in place
      float number;
      std::memcpy(&number, shard_.data() + i * sizeof(float), sizeof(number));
      const bf16 rounded(number);
      std::memcpy(shard_.data() + i * sizeof(bf16), &rounded, sizeof(rounded));
    }
  }

  // Joins elements [begin, end) of all ranks' shards into whole rows and writes them.
  void join_rows(const Target& target, std::int64_t begin, std::int64_t end) {
    const Parameter& parameter = target.parameter;
    const auto size = static_cast<std::int64_t>(size_of(target.dtype));
    std::vector<Source> sources;
    for (int rank = 0; rank < engine_.groups()[GroupKind::HostTp].size(); ++rank)
      for_each_range(parameter.shard, parameter.global, rank, begin, end,
                     [&](const ShardRange& range) {
                       sources.push_back(
                           {range.global, range.count, rank * (end - begin) + range.local - begin});
                     });
    std::ranges::sort(sources,
                      [](const Source& a, const Source& b) { return a.global < b.global; });
    std::int64_t start = 0, filled = 0;  // of the range that is being joined
    const auto flush = [&] {
      if (filled > 0)
        target.writer.put_copy(queue_, target.name, start,
                               Tensor(joined_.data(), target.dtype, {filled}));
    };
    for (const Source& source : sources) {
      if (start + filled != source.global) {
        flush();
        start = source.global;
        filled = 0;
      }
      std::memcpy(joined_.data() + filled * size, all_shards_.data() + source.at * size,
                  static_cast<std::size_t>(source.count * size));
      filled += source.count;
    }
    flush();
  }

  // Keeps the first error; does nothing after that.
  void guarded(const auto& work) {
    if (error_) return;
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  Engine& engine_;
  Backend* device_;
  WriteQueue queue_;
  int turn_ = 0;  // of the tensor group
  std::vector<std::byte> shard_, all_shards_, joined_;
  std::exception_ptr error_;
};

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
              CheckpointDirectory part, const ParameterSet& set, const UpdateRules& rules) {
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
                            const std::vector<StateRange>& segments) {
  std::int64_t total = 0;
  for (const SavedKind& kind : kinds)
    for (const StateRange& segment : segments)
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
    announce(*model, files, kinds, CheckpointDirectory::Model, whole, rules);
    if (engine.optimizer().state().has_ema()) {
      average.emplace(host, at.model() / kAverage);
      write_model_texts(*average, engine_options, accumulator_of(engine_options.precision),
                        without_card(options.files));
      announce(*average, files, kinds, CheckpointDirectory::Average, whole, rules);
    }
    optimizer.emplace(host, at.state());
    if (!options.config.empty()) optimizer->text("config.yaml", options.config);
    if (!options.keep_always.empty()) optimizer->text(kKeepMark, options.keep_always + "\n");
    if (!state.history.empty()) optimizer->text(kHistoryFile, history_to_json(state.history));
    if (host.rank() == 0)
      optimizer->text("lineage.json",
                      to_json(child_lineage(options.ancestors, next_sequence(at.folder),
                                            trainer + options.config)));
    announce(*optimizer, {"optimizer", options.max_shard_bytes}, kinds, CheckpointDirectory::State,
             whole, rules);
  });
  together(host,
           [&] { shards.emplace(engine, snapshot == nullptr ? &engine.backend() : nullptr); });
  const auto writer_of = [&](CheckpointDirectory part) -> CheckpointWriter& {
    return part == CheckpointDirectory::Model     ? *model
           : part == CheckpointDirectory::Average ? *average
                                                  : *optimizer;
  };
  together(host, [&] {
    const std::vector<StateRange> segments = saved_segments(engine);
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
  if (!state.expert_counts.empty()) json["expert_counts"] = state.expert_counts;
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
