#include "train/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/exchange.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "model/adapter/apply_adapter.h"
#include "model/files/fingerprint.h"
#include "model/initialize.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/history.h"
#include "train/checkpoint/snapshot.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

Json parse_json(const std::string& text, const std::string& source) {
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception&) {
    damaged_file(source, "{} is not valid JSON: the checkpoint is damaged; copy it again", source);
  }
}

Json read_json(const fs::path& path) { return parse_json(read_text_file(path), path.string()); }

}  // namespace

TrainerState state_from_json(const std::string& text, const std::string& source) {
  const Json json = parse_json(text, source);
  try {
    TrainerState state;
    state.step = json.at("step");
    state.tokens = json.at("tokens");
    state.samples = json.at("samples");
    state.stage = json.value("stage", std::int64_t{0});  // older versions had no stages
    state.stage_start = json.value("stage_start", std::int64_t{0});
    state.batches = read_batches(json);
    state.seed = json.at("seed");
    state.data = json.at("data");
    state.base = json.value("base", "");
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
    state.expert_counts = json.value("expert_counts", std::vector<double>());
    if (state.recent.losses.size() != state.recent.norms.size())
      user_error("{} is not a trainer state: it has {} losses and {} norms", source,
                 state.recent.losses.size(), state.recent.norms.size());
    return state;
  } catch (const nlohmann::json::exception& error) {
    user_error("{} is not a trainer state: {}", source, error.what());
  }
}

TrainerState saved_state(const fs::path& model) {
  const fs::path path = model / "trainer.json";
  TrainerState state = state_from_json(read_text_file(path), path.string());
  state.history = read_history(state_directory(model));
  return state;
}

DType saved_precision(const fs::path& model) {
  const fs::path path = model / "trainer.json";
  const Json json = read_json(path);
  if (!json.contains("precision") || !json["precision"].is_string())
    user_error("{} has no precision: it is not a trainer state", path.string());
  return parse_precision(json["precision"].get<std::string>());
}

namespace {

void check_adapter_settings(const StoredAdapter& adapter, const LoraConfig& wanted) {
  const LoraConfig saved = adapter.training_config();
  const auto text = [](const LoraConfig& lora) {
    return fmt::format("r {}, alpha {:g}{}", lora.r, lora.alpha, lora.rslora ? ", rslora" : "");
  };
  if (text(saved) != text(wanted))
    user_error(
        "the checkpoint {} has adapters of {}, and `adapter:` asks for {}: restore these keys, or "
        "start a new run with adapter.init",
        adapter.directory().string(), text(saved), text(wanted));
}

// The weights of a checkpoint: those in its directory, or, if adapters are trained, the trained
// parameters in a PEFT directory and the others in their base model. Throws UserError if they do
// not belong to the engine's model.
class StoredWeights {
 public:
  StoredWeights(FileLoader& loader, const fs::path& directory, const Engine& engine) {
    if (engine.options().model.lora.on()) {
      open_adapter(loader, directory, engine);
      return;
    }
    files_.emplace(directory);
    stored_.emplace(loader, *files_, engine.parameters());
    all_ = trained_ = &*stored_;
  }

  StoredWeights(const StoredWeights&) = delete;
  StoredWeights& operator=(const StoredWeights&) = delete;

  const ParameterSource& all() const { return *all_; }
  const ParameterSource& trained() const { return *trained_; }

 private:
  void open_adapter(FileLoader& loader, const fs::path& directory, const Engine& engine) {
    const EngineOptions& options = engine.options();
    files_.emplace(options.base);
    adapter_.emplace(directory, options.model, options.base);
    check_adapter_settings(*adapter_, options.model.lora);
    stored_.emplace(loader, *files_, engine.parameters(), "",
                    [](const Parameter& parameter) { return !parameter.trained; });
    adapters_.emplace(loader, *adapter_, options.model);
    chosen_.emplace([this](const Parameter& parameter) -> const ParameterSource& {
      if (parameter.trained) return *adapters_;
      return *stored_;
    });
    all_ = &*chosen_;
    trained_ = &*adapters_;
  }

  std::optional<SafetensorsModel> files_;
  std::optional<StoredAdapter> adapter_;
  std::optional<StoredParameters> stored_;
  std::optional<AdapterParameters> adapters_;
  std::optional<ChosenParameters> chosen_;
  const ParameterSource *all_ = nullptr, *trained_ = nullptr;
};

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
    if (!parameter.trained) continue;
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
      stored.push_back(
          {rule, i,
           StoredParameters(loader, files, set, slots[i].name + ".",
                            [&](const Parameter& p) { return p.trained && &rules(p) == rule; })});
  }
  return stored;
}

void check_same_model(const fs::path& directory, const EngineOptions& options) {
  ModelConfig saved = read_hf_config(directory / "config.json");
  // Only learned positions limit the sequence length; otherwise max_positions may change.
  if (saved.positions() != PositionKind::Learned) saved.max_positions = options.model.max_positions;
  if (write_hf_config(saved, options.precision) !=
      write_hf_config(options.model, options.precision))
    user_error(
        "the checkpoint {} holds another model than the configuration: compare its config.json "
        "with `model:`, or choose another run.dir",
        directory.string());
}

// The model that adapters are trained on.
struct BaseModel {
  SafetensorsModel files;
  WeightsFingerprint fingerprint = {};
};

// Ranks that see different files would train on a mixture of them.
std::optional<BaseModel> open_base(Communicator& host, const EngineOptions& options) {
  std::optional<BaseModel> base;
  if (!options.model.lora.on()) return base;
  together(host, [&] { base = BaseModel{.files = SafetensorsModel(options.base)}; });
  base->fingerprint = shared_fingerprint(host, base->files);
  check_agreement(host,
                  {{"the fingerprint of the weights of the base model", base->fingerprint.text()}});
  return base;
}

// Adapters belong to the weights that they were trained with.
void check_base(TrainerState& state, const BaseModel& base, const Engine& engine) {
  if (!state.base.empty() && !is_same_model(state.base, base.fingerprint, base.files))
    user_error(
        "the weights in {} are not those that the adapters of the run were trained with: restore "
        "them, or name the directory that has them in model.init",
        engine.options().base);
  if (!state.base.empty() && is_old_fingerprint(state.base) && engine.groups().is_first())
    log_warning(
        "an older version recorded the base weights of this run without their large tensors: "
        "these were not compared; the next checkpoint records all of them");
  state.base = base.fingerprint.text();
}

// Checks the model and announces to the loader which tensors to load. `averaged`: load the average
// of the weights.
TrainerState announce_contents(const fs::path& directory, const fs::path& state_files,
                               bool averaged, Engine& engine, FileLoader& loader,
                               const BeginsStage& begins, const std::optional<BaseModel>& base) {
  const EngineOptions& options = engine.options();
  TrainerState state = saved_state(directory);
  if (options.model.lora.on() || is_adapter_directory(directory) || (begins && begins(state)))
    check_saved_model(directory, options.model);
  else
    check_same_model(directory, options);
  const ParameterSet& set = engine.parameters();
  const Optimizer& optimizer = engine.optimizer();
  const SafetensorsModel saved_optimizer(state_files, "optimizer");
  const StoredWeights weights(loader, directory, engine);
  if (base) check_base(state, *base, engine);
  const std::vector<StoredSlot> slots = stored_slots(loader, saved_optimizer, engine);
  // Runs in 16 bits store their master weights there.
  const auto trained = [](const Parameter& parameter) { return parameter.trained; };
  const auto& parameters = set.parameters();
  const auto first = std::ranges::find_if(parameters, trained);
  const bool has_master =
      first != parameters.end() && saved_optimizer.find(kMasterPrefix + first->name);
  std::optional<StoredParameters> stored_master;
  if (has_master) stored_master.emplace(loader, saved_optimizer, set, kMasterPrefix, trained);
  const ParameterSource& master = has_master ? *stored_master : weights.all();
  const bool same_precision = saved_precision(directory) == options.precision;
  std::optional<StoredWeights> average;
  if (averaged) average.emplace(loader, directory / kAverage, engine);
  const ChosenParameters unrounded([&](const Parameter& parameter) -> const ParameterSource& {
    return parameter.trained ? master : weights.all();
  });
  engine.write_weights(same_precision ? weights.all() : unrounded, master,
                       averaged ? average->trained() : master);
  for (const auto& [rule, slot, source] : slots)
    for (const StateRange& segment : optimizer.state().segments())
      if (segment.rule == rule)
        source.fill(engine.backend(), optimizer.state().slot(segment, slot), set,
                    segment.range.begin, segment.range.end);
  return state;
}

}  // namespace

void check_saved_model(const fs::path& checkpoint, const ModelConfig& model) {
  const bool adapter = is_adapter_directory(checkpoint);
  if (adapter && !model.lora.on())
    user_error(
        "the checkpoint {} holds an adapter: give the keys of `adapter:` that it was trained with, "
        "or merge it with kintsugi model merge-adapter and start from that with model.init",
        checkpoint.string());
  if (!adapter && model.lora.on())
    user_error(
        "the checkpoint {} holds a complete model, and `adapter:` asks for adapters: start a new "
        "run from it with model.init",
        checkpoint.string());
  if (!adapter) check_shapes(read_hf_config(checkpoint / "config.json"), model, checkpoint);
}

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
      damaged_file(
          state_files.string(),
          "the checkpoint {} cannot be continued without the optimizer's state, which is not in {}",
          model.string(), state_files.string());
  });
  const bool has_ema = engine.optimizer().state().has_ema();
  // Rank 0 decides for all ranks.
  const bool averaged =
      has_ema && text_of(host, 0, fs::exists(model / kAverage) ? kAverage : "") == kAverage;
  FileLoader loader(engine.backend());
  verify_files(host, model, loader, owner);
  if (averaged) verify_files(host, model / kAverage, loader, owner);
  if (state_files.parent_path() != model) verify_files(host, state_files, loader, owner);
  const std::optional<BaseModel> base = open_base(host, engine.options());
  if (base) verify_weights(host, engine.options().base, loader);
  TrainerState state;
  std::exception_ptr refused;  // reported only if no file is damaged, which may be the cause
  together(host, [&] {
    try {
      state = announce_contents(model, state_files, averaged, engine, loader, begins, base);
    } catch (const UserError&) {
      refused = std::current_exception();
      loader.forget_loads();
    }
  });
  together(host, [&] {
    std::optional<Progress> loading;  // of the first rank, for all of them
    if (host.rank() == 0) loading.emplace("load checkpoint", 0, "bytes");
    loader.run(loading ? loading->callback() : ProgressCall());
  });
  together(host, [&] {
    if (refused) std::rethrow_exception(refused);
  });
  if (has_ema && !averaged && host.rank() == 0)
    log_info("the average of the weights (train.ema) starts from the weights of step {}",
             state.step);
  return state;
}

}  // namespace kintsugi
