#include "train/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/exchange.h"
#include "core/file.h"
#include "core/log.h"
#include "model/initialize.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/files.h"
#include "train/checkpoint/pieces.h"
#include "train/health.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

enum class Part { Model, State };  // the two directories of a checkpoint

// One kind of tensor per parameter: its prefix, and what this rank holds of it.
struct Kind {
  Part part;
  std::string prefix;
  DType dtype;
  std::function<Tensor(const StateRun& run)> owned;
  const UpdateRule* rule = nullptr;  // of the parameters that have it; none: all
};

// The same on every rank, so of the whole model's parameters.
std::vector<Kind> kinds_of(Engine& engine, const ParameterSet& whole) {
  const Sharding& sharding = engine.sharding();
  const OptimizerState& state = engine.optimizer().state();
  const DType precision = engine.options().precision;
  std::vector<Kind> kinds;
  kinds.push_back({Part::Model, "", precision, [&](const StateRun& run) {
                     return sharding.weights_at(run.bucket, run.range);
                   }});
  if (state.has_master())
    kinds.push_back({Part::State, "master.", accumulator_of(precision),
                     [&](const StateRun& run) { return state.master(run); }});
  for (const UpdateRule* const rule : rules_of(whole, engine.optimizer().rules())) {
    const std::vector<StateSlot> slots = rule->slots(precision);
    for (std::size_t i = 0; i < slots.size(); ++i)
      kinds.push_back({Part::State, slots[i].name + ".", slots[i].dtype,
                       [&state, i](const StateRun& run) { return state.slot(run, i); }, rule});
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

// Each element is written by one rank: its owner, or of several owners each a share.
void put_share(PieceWriter& pieces, CheckpointWriter& writer, Engine& engine, const Kind& kind) {
  for (const StateRun& run : engine.optimizer().state().runs()) {
    if (kind.rule != nullptr && kind.rule != run.rule) continue;
    const Sharding::Range owned = run.range;
    const Communicator& replica = engine.sharding().replica(run.bucket);
    const std::int64_t begin = owned.begin + owned.size() * replica.rank() / replica.size(),
                       end = owned.begin + owned.size() * (replica.rank() + 1) / replica.size();
    pieces.put(writer, kind.prefix, run.bucket, {begin, end},
               kind.owned(run).rows(begin - owned.begin, end - begin));
  }
}

std::string state_to_json(const TrainerState& state, DType precision) {
  return Json{{"format", 1},
              {"step", state.step},
              {"tokens", state.tokens},
              {"samples", state.samples},
              {"seed", state.seed},
              {"data", state.data},
              {"precision", to_string(precision)},
              {"loss_scale",
               {{"scale", state.loss_scale.scale},
                {"good_steps", state.loss_scale.good_steps},
                {"hysteresis", state.loss_scale.hysteresis}}},
              {"skipped", state.skipped}}
             .dump(2) +
         "\n";
}

void write_contents(const CheckpointPaths& at, Engine& engine, const TrainerState& state,
                    const CheckpointOptions& options) {
  Communicator& host = engine.sharding().groups()[GroupKind::World];
  const EngineOptions& engine_options = engine.options();
  const ParameterSet whole(engine_options.model);
  const UpdateRules& rules = engine.optimizer().rules();
  const std::vector<Kind> kinds = kinds_of(engine, whole);
  const std::string trainer = state_to_json(state, engine_options.precision);
  std::optional<CheckpointWriter> model, rest;
  std::optional<PieceWriter> pieces;
  together(host, [&] {
    model.emplace(host, at.model());
    model->text("config.json", write_hf_config(engine_options.model, engine_options.precision));
    model->text("generation_config.json", write_hf_generation_config(engine_options.model));
    for (const Tokenizer::File& file : options.files) model->text(file.name, file.content);
    model->text("trainer.json", trainer);
    announce(*model, "model", kinds, Part::Model, whole, rules, options.max_shard_bytes);
    rest.emplace(host, at.state());
    if (!options.config.empty()) rest->text("config.yaml", options.config);
    if (host.rank() == 0)
      rest->text("lineage.json", to_json(child_lineage(options.ancestors, next_sequence(at.folder),
                                                       trainer + options.config)));
    announce(*rest, "optimizer", kinds, Part::State, whole, rules, options.max_shard_bytes);
  });
  together(host, [&] { pieces.emplace(engine); });
  together(host, [&] {
    for (const Kind& kind : kinds)
      put_share(*pieces, kind.part == Part::Model ? *model : *rest, engine, kind);
    pieces->rethrow();
  });
  model->finish();
  rest->finish();
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
  // What failed together, all ranks know of; anything else ends the job.
  const auto give_up = [&] [[noreturn]] (const std::exception& error) {
    if (first) withdraw_checkpoint(target);
    host.barrier();
    throw SharedFailure(
        fmt::format("the checkpoint of step {} was not saved, the ones before it are untouched: {}",
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
        "{} is not valid JSON: the checkpoint is damaged; delete its directory and run again to "
        "continue from the one before",
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
    state.seed = json.at("seed");
    state.data = json.at("data");
    const Json& scale = json.at("loss_scale");
    state.loss_scale = {scale.at("scale"), scale.at("good_steps"), scale.at("hysteresis")};
    state.skipped = json.value("skipped", std::int64_t{0});
    return state;
  } catch (const nlohmann::json::exception& error) {
    user_error("{} is not a trainer state: {}", path.string(), error.what());
  }
}

DType saved_precision(const fs::path& model) {
  const fs::path path = model / "trainer.json";
  const Json json = read_json(path);
  if (!json.contains("precision") || !json["precision"].is_string())
    user_error("{} does not say the precision of its run", path.string());
  return parse_precision(json["precision"].get<std::string>());
}

namespace {

struct StoredSlot {
  const UpdateRule* rule;
  std::size_t slot;
  StoredParameters source;
};

std::vector<StoredSlot> stored_slots(const SafetensorsModel& files, Engine& engine) {
  const ParameterSet& set = engine.parameters();
  const UpdateRules& rules = engine.optimizer().rules();
  std::vector<StoredSlot> stored;
  for (const UpdateRule* const rule : rules_of(set, rules)) {
    const std::vector<StateSlot> slots = rule->slots(engine.options().precision);
    for (std::size_t i = 0; i < slots.size(); ++i)
      stored.push_back({rule, i,
                        StoredParameters(files, set, slots[i].name + ".",
                                         [&](const Parameter& p) { return &rules(p) == rule; })});
  }
  return stored;
}

TrainerState load_verified(const fs::path& directory, const fs::path& beside, Engine& engine) {
  const EngineOptions& options = engine.options();
  ModelConfig saved = read_hf_config(directory / "config.json");
  // How long its sequences were is a claim of the model, not a part of it, where no table ends.
  if (saved.positions() != PositionKind::Learned) saved.max_positions = options.model.max_positions;
  if (write_hf_config(saved, options.precision) !=
      write_hf_config(options.model, options.precision))
    user_error(
        "the checkpoint {} holds another model than the configuration: compare its config.json "
        "with `model:`, or choose another run.dir",
        directory.string());
  const ParameterSet& set = engine.parameters();
  const Optimizer& optimizer = engine.optimizer();
  const TrainerState state = saved_state(directory);
  const SafetensorsModel model(directory), rest(beside, "optimizer");
  const StoredParameters weights(model, set);
  const std::vector<StoredSlot> slots = stored_slots(rest, engine);
  // 16-bit runs keep their weights in full there.
  const bool has_master = static_cast<bool>(rest.find("master." + set.parameters().front().name));
  const StoredParameters master = has_master ? StoredParameters(rest, set, "master.") : weights;
  const bool same_precision = saved_precision(directory) == options.precision;
  engine.write_weights(same_precision ? weights : master, master);
  for (const auto& [rule, slot, source] : slots)
    for (const StateRun& run : optimizer.state().runs())
      if (run.rule == rule)
        fill_from(source, engine.backend(), optimizer.state().slot(run, slot), set, run.range.begin,
                  run.range.end);
  return state;
}

}  // namespace

std::string saved_config(const fs::path& model) {
  const fs::path path = state_directory(model) / "config.yaml";
  return fs::exists(path) ? read_text_file(path) : "";
}

TrainerState load_checkpoint(const fs::path& checkpoint, Engine& engine) {
  Communicator& host = engine.groups()[GroupKind::World];
  fs::path model, beside;
  together(host, [&] {
    model = fs::canonical(checkpoint);  // `latest` is a link
    beside = state_directory(model);
    if (!fs::exists(beside))
      user_error(
          "the checkpoint {} cannot be continued without the optimizer's state, which is looked "
          "for in {}: copy it there, or point {} to a checkpoint that has its state",
          model.string(), beside.string(), (model.parent_path() / "latest").string());
  });
  verify_files(host, model);
  if (beside.parent_path() != model) verify_files(host, beside);
  TrainerState state;
  together(host, [&] { state = load_verified(model, beside, engine); });
  return state;
}

}  // namespace kintsugi
