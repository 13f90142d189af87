#include "train/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/exchange.h"
#include "core/file.h"
#include "core/log.h"
#include "model/initialize.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/files.h"
#include "train/checkpoint/history.h"
#include "train/checkpoint/shard_writer.h"
#include "train/health.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

const char* const kAverage = "ema";  // the directory of the averaged weights

// The directories of a checkpoint. Average is inside that of the model.
enum class Part { Model, Average, State };

// One kind of tensor that is saved per parameter: weight, average, master or an optimizer slot.
struct Kind {
  Part part;
  std::string prefix;
  DType dtype;
  std::function<Tensor(const StateSegment& segment)> owned;  // the elements this rank owns
  const UpdateRule* rule = nullptr;  // only parameters with this rule have it; nullptr: all
};

// Takes the parameters of the whole model, so that all ranks return the same list.
std::vector<Kind> kinds_of(Engine& engine, const ParameterSet& whole) {
  const Sharding& sharding = engine.sharding();
  const OptimizerState& state = engine.optimizer().state();
  const DType precision = engine.options().precision;
  std::vector<Kind> kinds;
  kinds.push_back({Part::Model, "", precision, [&](const StateSegment& segment) {
                     return sharding.weights_at(segment.bucket, segment.range);
                   }});
  if (state.has_master())
    kinds.push_back({Part::State, "master.", accumulator_of(precision),
                     [&](const StateSegment& segment) { return state.master(segment); }});
  if (state.has_ema())
    kinds.push_back({Part::Average, "", accumulator_of(precision),
                     [&](const StateSegment& segment) { return state.ema(segment); }});
  for (const UpdateRule* const rule : rules_of(whole, engine.optimizer().rules())) {
    const std::vector<StateSlot> slots = rule->slots(precision);
    for (std::size_t i = 0; i < slots.size(); ++i)
      kinds.push_back({Part::State, slots[i].name + ".", slots[i].dtype,
                       [&state, i](const StateSegment& segment) { return state.slot(segment, i); },
                       rule});
  }
  return kinds;
}

void announce(CheckpointWriter& writer, const std::string& stem, const std::vector<Kind>& kinds,
              Part part, const ParameterSet& set, const UpdateRules& rules,
              std::uint64_t max_bytes) {
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const Kind& kind : kinds)
    if (kind.part == part)
      for (const Parameter& parameter : set.parameters())
        if (kind.rule == nullptr || kind.rule == &rules(parameter))
          tensors.push_back({kind.prefix + parameter.name, kind.dtype, parameter.shape});
  writer.tensors(stem, tensors, max_bytes);
}

// Writes this rank's elements. Each element is written by one rank: replicas split the range that
// they all own.
void put_owned(ShardWriter& shards, CheckpointWriter& writer, Engine& engine, const Kind& kind) {
  for (const StateSegment& segment : engine.optimizer().state().segments()) {
    if (kind.rule != nullptr && kind.rule != segment.rule) continue;
    const Sharding::Range owned = segment.range;
    const Communicator& replica = engine.sharding().replica(segment.bucket);
    const std::int64_t begin = owned.begin + owned.size() * replica.rank() / replica.size(),
                       end = owned.begin + owned.size() * (replica.rank() + 1) / replica.size();
    shards.put(writer, kind.prefix, segment.bucket, {begin, end},
               kind.owned(segment).rows(begin - owned.begin, end - begin));
  }
}

std::string state_to_json(const TrainerState& state, DType precision) {
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
  if (state.outliers > 0) json["outliers"] = state.outliers;
  if (!state.recent.losses.empty())
    json["recent"] = {{"losses", state.recent.losses}, {"norms", state.recent.norms}};
  return json.dump(2) + "\n";
}

// The text files of a Hugging Face model in the given precision.
void write_model_texts(CheckpointWriter& writer, const EngineOptions& options, DType precision,
                       const std::vector<Tokenizer::File>& files) {
  writer.text("config.json", write_hf_config(options.model, precision));
  writer.text("generation_config.json", write_hf_generation_config(options.model));
  for (const Tokenizer::File& file : files) writer.text(file.name, file.content);
}

// The model card describes the trained weights, not their average.
std::vector<Tokenizer::File> without_card(std::vector<Tokenizer::File> files) {
  std::erase_if(files, [](const Tokenizer::File& file) { return file.name == "README.md"; });
  return files;
}

void write_contents(const CheckpointPaths& at, Engine& engine, const TrainerState& state,
                    const CheckpointOptions& options) {
  Communicator& host = engine.sharding().groups()[GroupKind::World];
  const EngineOptions& engine_options = engine.options();
  const ParameterSet whole(engine_options.model);
  const UpdateRules& rules = engine.optimizer().rules();
  const std::vector<Kind> kinds = kinds_of(engine, whole);
  const std::string trainer = state_to_json(state, engine_options.precision);
  std::optional<CheckpointWriter> model, average, optimizer;
  std::optional<ShardWriter> shards;
  together(host, [&] {
    model.emplace(host, at.model());
    write_model_texts(*model, engine_options, engine_options.precision, options.files);
    model->text("trainer.json", trainer);
    announce(*model, "model", kinds, Part::Model, whole, rules, options.max_shard_bytes);
    if (engine.optimizer().state().has_ema()) {
      average.emplace(host, at.model() / kAverage);
      write_model_texts(*average, engine_options, accumulator_of(engine_options.precision),
                        without_card(options.files));
      announce(*average, "model", kinds, Part::Average, whole, rules, options.max_shard_bytes);
    }
    optimizer.emplace(host, at.state());
    if (!options.config.empty()) optimizer->text("config.yaml", options.config);
    if (options.keep_always) optimizer->text(kKeepMark, kKeepText);
    if (!state.history.empty()) optimizer->text(kHistoryFile, history_to_json(state.history));
    if (host.rank() == 0)
      optimizer->text("lineage.json",
                      to_json(child_lineage(options.ancestors, next_sequence(at.folder),
                                            trainer + options.config)));
    announce(*optimizer, "optimizer", kinds, Part::State, whole, rules, options.max_shard_bytes);
  });
  together(host, [&] { shards.emplace(engine); });
  together(host, [&] {
    for (const Kind& kind : kinds)
      put_owned(*shards,
                kind.part == Part::Model     ? *model
                : kind.part == Part::Average ? *average
                                             : *optimizer,
                engine, kind);
    shards->finish();
  });
  if (average) average->finish();
  model->finish();
  optimizer->finish();
}

}  // namespace

fs::path save_checkpoint(const fs::path& checkpoints, Engine& engine, const TrainerState& state,
                         const CheckpointOptions& options) {
  const CheckpointPaths target{checkpoints, checkpoint_name(state.step)};
  if (!weights_are_finite(engine))
    throw Diverged(fmt::format(
        "the weights are not finite after step {}, so no checkpoint is saved", state.step));
  Communicator& host = engine.sharding().groups()[GroupKind::World];
  const bool first = host.rank() == 0;
  // All ranks know of a failure inside together(); any other failure ends the job.
  const auto give_up = [&] [[noreturn]] (const std::exception& error) {
    if (first) withdraw_checkpoint(target);
    host.barrier();
    throw SharedFailure(
        fmt::format("the checkpoint of step {} was not saved, earlier ones are unchanged: {}",
                    state.step, error.what()));
  };
  try {
    write_contents(target.with(".tmp"), engine, state, options);
    together(host, [&] {
      if (first) publish_checkpoint(target);
    });
  } catch (const SharedFailure& error) {
    give_up(error);
  } catch (const SharedUserError& error) {
    give_up(error);
  }
  if (first) remove_old_checkpoints(target, options.keep);
  return target.model();
}

namespace {

Json read_json(const fs::path& path) {
  try {
    return Json::parse(read_text_file(path));
  } catch (const nlohmann::json::exception&) {
    user_error(
        "{} is not valid JSON: the checkpoint is damaged; copy it again or, if it is the latest "
        "one "
        "of this run, delete its directory and run again to continue from the one before",
        path.string());
  }
}

}  // namespace

TrainerState saved_state(const fs::path& model) {
  const fs::path path = model / "trainer.json";
  const Json json = read_json(path);
  try {
    TrainerState state;
    state.step = json.at("step");
    state.tokens = json.at("tokens");
    state.samples = json.at("samples");
    state.stage = json.value("stage", std::int64_t{0});  // older versions had no stages
    state.stage_start = json.value("stage_start", std::int64_t{0});
    state.batches = read_batches(json);
    state.history = read_history(state_directory(model));
    state.seed = json.at("seed");
    state.data = json.at("data");
    const Json& scale = json.at("loss_scale");
    state.loss_scale = {scale.at("scale"), scale.at("good_steps"), scale.at("hysteresis")};
    state.skipped = json.value("skipped", std::int64_t{0});
    state.outliers = json.value("outliers", std::int64_t{0});
    if (json.contains("recent"))
      state.recent = {json["recent"].at("losses").get<std::vector<double>>(),
                      json["recent"].at("norms").get<std::vector<double>>()};
    state.skipped_samples = read_skipped(json);
    if (json.contains("spikes"))
      state.spikes = {json["spikes"].at("losses").get<std::vector<double>>(),
                      json["spikes"].at("rewinds"), json["spikes"].at("last_step")};
    if (state.recent.losses.size() != state.recent.norms.size())
      user_error("{} is not a trainer state: it has {} losses and {} norms", path.string(),
                 state.recent.losses.size(), state.recent.norms.size());
    return state;
  } catch (const nlohmann::json::exception& error) {
    user_error("{} is not a trainer state: {}", path.string(), error.what());
  }
}

DType saved_precision(const fs::path& model) {
  const fs::path path = model / "trainer.json";
  const Json json = read_json(path);
  if (!json.contains("precision") || !json["precision"].is_string())
    user_error("{} has no precision: it is not a trainer state", path.string());
  return parse_precision(json["precision"].get<std::string>());
}

namespace {

struct StoredSlot {
  const UpdateRule* rule;
  std::size_t slot;
  StoredParameters source;
};

// Throws UserError if another optimizer wrote the state: then it has the parameter's weights but
// none of its slots, and those of another rule instead.
void check_optimizer(const SafetensorsModel& files, const ParameterSet& set,
                     const UpdateRules& rules) {
  for (const Parameter& parameter : set.parameters()) {
    const UpdateRule& rule = rules(parameter);
    const std::string slot = rule.slots(DType::F32).front().name;
    if (files.find(slot + "." + parameter.name)) continue;
    for (const OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Muon}) {
      const UpdateRules others = update_rules({.kind = kind});
      const UpdateRule& other = others(parameter);
      if (other.name() != rule.name() &&
          files.find(other.slots(DType::F32).front().name + "." + parameter.name))
        user_error(
            "the checkpoint has the state of {} for {}, and optimizer.kind asks for {}: set it "
            "back, or start a new run from the weights with model.init",
            other.name(), parameter.name, rule.name());
    }
  }
}

std::vector<StoredSlot> stored_slots(FileLoader& loader, const SafetensorsModel& files,
                                     Engine& engine) {
  const ParameterSet& set = engine.parameters();
  const UpdateRules& rules = engine.optimizer().rules();
  std::vector<StoredSlot> stored;
  check_optimizer(files, set, rules);
  for (const UpdateRule* const rule : rules_of(set, rules)) {
    const std::vector<StateSlot> slots = rule->slots(engine.options().precision);
    for (std::size_t i = 0; i < slots.size(); ++i)
      stored.push_back({rule, i,
                        StoredParameters(loader, files, set, slots[i].name + ".",
                                         [&](const Parameter& p) { return &rules(p) == rule; })});
  }
  return stored;
}

// Checks the model and announces to the loader which tensors to load. `averaged`: load the average
// of the weights.
TrainerState announce_contents(const fs::path& directory, const fs::path& state_files,
                               bool averaged, Engine& engine, FileLoader& loader,
                               const BeginsStage& begins) {
  const EngineOptions& options = engine.options();
  const TrainerState state = saved_state(directory);
  ModelConfig saved = read_hf_config(directory / "config.json");
  if (begins && begins(state)) {
    check_shapes(saved, options.model, directory);
    saved = options.model;
  }
  // Only learned positions limit the sequence length; otherwise max_positions may change.
  if (saved.positions() != PositionKind::Learned) saved.max_positions = options.model.max_positions;
  if (write_hf_config(saved, options.precision) !=
      write_hf_config(options.model, options.precision))
    user_error(
        "the checkpoint {} holds another model than the configuration: compare its config.json "
        "with `model:`, or choose another run.dir",
        directory.string());
  const ParameterSet& set = engine.parameters();
  const Optimizer& optimizer = engine.optimizer();
  const SafetensorsModel model(directory), saved_optimizer(state_files, "optimizer");
  const StoredParameters weights(loader, model, set);
  const std::vector<StoredSlot> slots = stored_slots(loader, saved_optimizer, engine);
  // Runs in 16 bits store their master weights there.
  const bool has_master =
      static_cast<bool>(saved_optimizer.find("master." + set.parameters().front().name));
  const StoredParameters master =
      has_master ? StoredParameters(loader, saved_optimizer, set, "master.") : weights;
  const bool same_precision = saved_precision(directory) == options.precision;
  std::optional<SafetensorsModel> average_files;
  if (averaged) average_files.emplace(directory / kAverage);
  const StoredParameters average =
      averaged ? StoredParameters(loader, *average_files, set) : master;
  engine.write_weights(same_precision ? weights : master, master, average);
  for (const auto& [rule, slot, source] : slots)
    for (const StateSegment& segment : optimizer.state().segments())
      if (segment.rule == rule)
        source.fill(engine.backend(), optimizer.state().slot(segment, slot), set,
                    segment.range.begin, segment.range.end);
  return state;
}

}  // namespace

std::string saved_config(const fs::path& model) {
  const fs::path path = state_directory(model) / "config.yaml";
  return fs::exists(path) ? read_text_file(path) : "";
}

TrainerState load_checkpoint(const fs::path& checkpoint, Engine& engine, const BeginsStage& begins,
                             CheckpointOf owner) {
  Communicator& host = engine.groups()[GroupKind::World];
  fs::path model, state_files;
  together(host, [&] {
    model = fs::canonical(checkpoint);  // `latest` is a link
    state_files = state_directory(model);
    if (!fs::exists(state_files))
      user_error(
          "the checkpoint {} cannot be continued without the optimizer's state, which is not in "
          "{}: copy it there, or point {} to a checkpoint that has its state",
          model.string(), state_files.string(), (model.parent_path() / "latest").string());
  });
  const bool has_ema = engine.optimizer().state().has_ema();
  // Rank 0 decides for all ranks.
  const bool averaged =
      has_ema && text_of(host, 0, fs::exists(model / kAverage) ? kAverage : "") == kAverage;
  FileLoader loader(engine.backend());
  verify_files(host, model, loader, owner);
  if (averaged) verify_files(host, model / kAverage, loader, owner);
  if (state_files.parent_path() != model) verify_files(host, state_files, loader, owner);
  TrainerState state;
  std::exception_ptr refused;  // reported only if no file is damaged, which may be the cause
  together(host, [&] {
    try {
      state = announce_contents(model, state_files, averaged, engine, loader, begins);
    } catch (const UserError&) {
      refused = std::current_exception();
      loader.forget_loads();
    }
  });
  together(host, [&] { loader.run(); });
  together(host, [&] {
    if (refused) std::rethrow_exception(refused);
  });
  if (has_ema && !averaged && host.rank() == 0)
    log_info("the average of the weights (train.ema) starts from the weights of step {}",
             state.step);
  return state;
}

}  // namespace kintsugi
