#include "train/config/config.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "core/units.h"
#include "model/adapter/stored_adapter.h"
#include "model/families/family.h"
#include "model/model_fields.h"
#include "train/checkpoint/folder.h"
#include "train/config/checks.h"
#include "train/config/keys.h"
#include "train/config/model.h"

namespace kintsugi {

std::string_view to_string(DeviceChoice device) {
  return kEnumWords<DeviceChoice>.at(static_cast<std::size_t>(device));
}

std::string_view to_string(ObjectiveKind kind) {
  return kEnumWords<ObjectiveKind>.at(static_cast<std::size_t>(kind));
}

namespace {

// A checkpoint of a run, all of which have the same model; empty: it has none.
std::filesystem::path checkpoint_of(const std::string& run) {
  const auto all = list_checkpoints(std::filesystem::path(run) / "checkpoints");
  return all.empty() ? std::filesystem::path() : all.back().model();
}

class RunReader : public YamlReader {
 public:
  using YamlReader::YamlReader;
  using YamlReader::operator();

  void operator()(const char* key, ModelSection section) {
    if (!take(key))
      user_error("{} has no section model: add one, for example model: {{preset: llama-tiny}}",
                 document().source());
    const YAML::Node node = document().root()[key];
    section.model = read_model_section(node, document().source_of(key), checkpoint_of(section.run));
    if (const YAML::Node preset = node["preset"]) section.preset = preset.Scalar();
    if (const YAML::Node config = node["config"]) section.config = config.Scalar();
    if (const YAML::Node init = node["init"]; init && !init.IsNull()) section.init = init.Scalar();
    read_key(node, "new_tokens", "mean or subtokens", section.new_tokens);
    read_key(node, "allow_unused_weights", "true or false", section.allow_unused);
  }

  explicit RunReader(YamlReader reader) : YamlReader(std::move(reader)) {}

  void operator()(const char* key, LayoutSection section) {
    if (!take(key)) return;
    const YAML::Node layout = node()[key];
    section.automatic = layout.IsScalar() && layout.Scalar() == "auto";
    if (!section.automatic) YamlReader::operator()(key, section.layout);
  }

  void operator()(const char* key, ObjectiveSection section) {
    if (!take(key)) return;
    if (node()[key].IsScalar())
      YamlReader::operator()(key, section.objective.kind);
    else
      YamlReader::operator()(key, section.objective);
  }

  void operator()(const char* key, RopeSection section) {
    if (take(key))
      read_rope_scaling(node()[key], document().source(), where(key), prefix() + key,
                        section.scaling);
  }

  void operator()(const char* key, StageList list) {
    if (!take(key) || node()[key].IsNull()) return;
    const auto items = sections(key);
    if (items->empty()) complain(key, "the list is empty: give at least one stage, or remove it");
    if (items->size() > kMostStages)
      complain(key,
               fmt::format("the list has {} stages, but a run has at most {}: use several runs "
                           "with run.from",
                           items->size(), kMostStages));
    RunConfig& run = list.run;
    for (const char* length : {"train.steps", "train.tokens"})
      if (document().has(length))
        user_error("{}: {}: each stage has its own length: give steps or tokens in stages",
                   document().where(length), length);
    run.train.steps = run.train.tokens = 0;
    std::vector<StageConfig> stages(items->size(), run);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      stages[i].stage = static_cast<std::int64_t>(i);
      RunReader((*items)[i]).read_stage(stages[i]);
    }
    run.stages = std::move(stages);
  }

  void read_stage(StageConfig& stage) {
    describe_stage(*this, stage);
    const YAML::Node data = node()["data"];
    if (node()["sequence_length"] && data && data.IsMap() && data["sequence_length"])
      complain("sequence_length", "is given twice, here and in data: remove one");
    YamlReader::operator()("sequence_length", stage.data.sequence_length, between(1, kMaxSize));
    refuse_other_keys();
    try {
      stage.model.complete_and_check();
    } catch (const UserError& error) {
      complain("rope_scaling", error.what());
    }
  }

  void read_all(RunConfig& config) {
    describe(*this, config);
    refuse_other_keys();
  }

 private:
  // A key of the section `model` that is not a field of the model.
  template <class Value>
  void read_key(const YAML::Node& model, const std::string& key, const char* choices,
                Value& value) const {
    const YAML::Node node = model[key];
    if (!node) return;
    try {
      if (!node.IsScalar()) user_error("must be {}, not {}", choices, in_words(node));
      value = YamlScalar<Value>::parse(node.Scalar());
    } catch (const UserError& error) {
      user_error("{}: model.{}: {}", document().where("model." + key), key, error.what());
    }
  }
};

class RunWriter : public YamlWriter {
 public:
  using YamlWriter::YamlWriter;
  using YamlWriter::operator();
  void operator()(const char* key, RopeSection section) {
    line(key, rope_scaling_to_yaml(section.scaling));
  }
  void operator()(const char* key, StageList list) {
    line(key, list.run.stages.empty() ? "null" : "");
    for (StageConfig& stage : list.run.stages) {
      RunWriter item(4);
      describe_stage(item, stage);
      std::string text = item.text();
      text[2] = '-';
      append(text);
    }
  }
  void operator()(const char* key, ModelSection section) {
    std::string origin;
    if (!section.preset.empty()) origin = "from preset " + section.preset;
    if (!section.config.empty()) origin = "from " + section.config;
    const std::string init =
        section.init.empty() ? "null" : YamlScalar<std::string>::format(section.init);
    block(key,
          fmt::format("{}init: {}\nnew_tokens: {}\nallow_unused_weights: {}\n",
                      model_to_yaml(section.model), init,
                      YamlScalar<NewTokens>::format(section.new_tokens), section.allow_unused),
          origin);
  }
  void operator()(const char* key, ObjectiveSection section) {
    YamlWriter::operator()(key, section.objective);
  }
  void operator()(const char* key, LayoutSection section) {
    if (section.automatic) return line(key, "auto");
    YamlWriter::operator()(key, section.layout);
  }
};

class RunKeys : public YamlKeys {
 public:
  using YamlKeys::operator();
  void operator()(const char* key, StageList) { add(key); }
  void operator()(const char* key, ModelSection) {
    for (const std::string& name : model_section_keys()) add(std::string(key) + "." + name);
  }
  void operator()(const char* key, LayoutSection section) {
    YamlKeys::operator()(key, section.layout);
  }
  void operator()(const char* key, ObjectiveSection section) {
    YamlKeys::operator()(key, section.objective);
  }
};

// store/fi, store/fi.txt and store/fi/ are all named "fi".
std::string name_of(const std::string& path) {
  std::filesystem::path whole = path;
  if (!whole.has_filename()) whole = whole.parent_path();
  const std::string stem = whole.stem().string();
  return stem.empty() ? path : stem;
}

}  // namespace

std::int64_t StageConfig::total_steps() const {
  if (train.tokens == 0) return train.steps;
  const std::int64_t samples = (train.tokens - 1) / data.sequence_length + 1;
  const std::int64_t needed = batches().steps_for(samples);
  return train.steps == 0 ? needed : std::min(train.steps, needed);
}

namespace {

std::vector<std::string> sorted_names(std::vector<std::string> names) {
  std::ranges::sort(names);
  return names;
}

// The adapters of adapter.init have their own r, alpha and modules: given keys may only repeat
// them.
void follow_initial_adapter(const YamlDocument& document, const std::string& prefix,
                            StageConfig& config) {
  AdapterConfig& adapter = config.adapter;
  if (!adapter.init) return;
  const auto where = [&](const std::string& key) {
    return document.where(document.has(prefix + key) ? prefix + key : key);
  };
  if (adapter.kind != AdapterKind::Lora)
    user_error("{}: adapter.init needs adapter.kind: lora", where("adapter.init"));
  std::error_code ignored;
  const bool gone = !std::filesystem::exists(*adapter.init, ignored);
  // The configuration of a run that was saved has all keys.
  if (gone && document.has("adapter.r") && document.has("adapter.alpha") &&
      document.has("adapter.targets"))
    return;
  LoraConfig lora;
  try {
    const std::filesystem::path latest = checkpoint_of(config.run.dir);
    // A run that continues does not need it any more.
    lora = StoredAdapter(gone && !latest.empty() ? latest : model_directory(*adapter.init))
               .training_config();
  } catch (const UserError& error) {
    user_error("{}: adapter.init: {}", where("adapter.init"), error.what());
  }
  const auto follow = [&](const std::string& key, auto& value, const auto& stored, bool same) {
    if ((document.has(prefix + key) || document.has(key)) && !same)
      user_error("{}: {} differs from that of the adapters in adapter.init ({}): remove it",
                 where(key), key, stored);
    value = stored;
  };
  follow("adapter.r", adapter.r, lora.r, adapter.r == lora.r);
  follow("adapter.alpha", adapter.alpha, lora.alpha, adapter.alpha == lora.alpha);
  follow("adapter.rslora", adapter.rslora, lora.rslora, adapter.rslora == lora.rslora);
  follow("adapter.targets", adapter.targets, lora.targets,
         sorted_names(adapter.targets) == sorted_names(lora.targets));
  follow("adapter.train", adapter.train, lora.train,
         sorted_names(adapter.train) == sorted_names(lora.train));
  if (!document.has(prefix + "adapter.dropout") && !document.has("adapter.dropout"))
    adapter.dropout = lora.dropout;
}

// Examples are not cut, and do not see each other.
void set_example_defaults(const YamlDocument& document, const std::string& prefix,
                          StageConfig& config) {
  if (!config.on_examples()) return;
  const auto given = [&](const std::string& key) {
    return document.has(key) || document.has(prefix + key);
  };
  const bool masks = family_info(config.model.family).document_masks;
  DataConfig& data = config.data;
  if (!given("data.packing")) data.packing = masks ? Packing::BestFit : Packing::Single;
  if (!given("data.document_mask")) data.document_mask = masks;
  if (!given("data.boundary_loss")) data.boundary_loss = false;
}

// Biases keep experts in balance better than losses do: those of DeepSeek-V3 remain. Adapters leave
// biases as they are.
void set_balance_defaults(const YamlDocument& document, const std::string& prefix,
                          StageConfig& config) {
  if (!config.model.experts) return;
  const auto given = [&](const std::string& key) {
    return document.has("train.balance." + key) || document.has(prefix + "train.balance." + key);
  };
  BalanceConfig& balance = config.train.balance;
  const bool bias = family_info(config.model.family).bias;
  if (bias && !given("loss")) balance.loss = 0.0001;
  if (bias && !given("z_loss")) balance.z_loss = 0;
  if ((!bias || config.adapter.kind != AdapterKind::None) && !given("bias_speed"))
    balance.bias_speed = 0;
  config.model.balance = balance;
}

// Names the stages that have no name.
void complete_stage_names(std::vector<StageConfig>& stages) {
  for (StageConfig& stage : stages)
    if (stage.stage_name.empty()) stage.stage_name = fmt::format("stage-{}", stage.stage + 1);
}

// Checks what complete stages must have in common, and carries over from stage to stage what has
// been trained: the positions.
void relate_stages(const YamlDocument& document, std::vector<StageConfig>& stages) {
  std::set<std::string> names;
  std::int64_t positions = 0;
  for (StageConfig& stage : stages) {
    const std::string key = fmt::format("stages[{}]", stage.stage);
    if (!names.insert(stage.stage_name).second)
      user_error("{}: {}.name: there are two stages named {}: give each its own name",
                 document.where(key), key, stage.stage_name);
    if (stage.stage_name.find_first_not_of("0123456789") == std::string::npos)
      user_error(
          "{}: {}.name: {} is a number, which `data where --stage` takes as the position of a "
          "stage: choose another name",
          document.where(key), key, stage.stage_name);
    if (stage.data.tokenizer != stages.front().data.tokenizer)
      user_error("{}: {}.data.tokenizer: all stages have the same tokenizer: remove it",
                 document.where(key), key);
    if (stage.optimizer.kind != stages.front().optimizer.kind)
      user_error("{}: {}.optimizer.kind: all stages have the same optimizer: remove it",
                 document.where(key), key);
    if (!stage.train.save)
      user_error(
          "{}: train.save is false, but a stage starts from the checkpoint of the stage before: "
          "remove it",
          document.where("train.save"));
    // What an earlier stage has trained stays trained.
    if (stage.model.positions() != PositionKind::Learned)
      positions = stage.model.max_positions = std::max(positions, stage.model.max_positions);
    // The first stage may follow that of run.from.
    if (stage.stage > 0) stage.rope_scaling_given = true;
  }
}

// Completes a stage, or a run without stages, and checks it. `prefix` is that of the stage's keys.
void complete_stage(const YamlDocument& document, const std::string& prefix, StageConfig& config) {
  config.vocab_size_given = document.has("model.vocab_size");
  config.max_positions_given = document.has("model.max_positions");
  config.rope_scaling_given =
      document.has("model.rope_scaling") || document.has(prefix + "rope_scaling");
  for (DataSource& source : config.data.train)
    if (source.name.empty()) source.name = name_of(source.path);
  for (ValidSource& source : config.data.valid)
    if (source.name.empty()) source.name = name_of(source.path);
  set_example_defaults(document, prefix, config);
  config.model.freeze = config.freeze;
  config.model.fp8 = config.train.fp8;
  set_balance_defaults(document, prefix, config);
  follow_initial_adapter(document, prefix, config);
  if (config.adapter.kind == AdapterKind::Lora)
    config.model.lora = {.r = config.adapter.r,
                         .alpha = config.adapter.alpha,
                         .dropout = config.adapter.dropout,
                         .rslora = config.adapter.rslora,
                         .targets = config.adapter.targets,
                         .train = config.adapter.train};
  check_run_config(document, prefix, config);
  set_trained_positions(config);
}

}  // namespace

// ---- the stages of a run

std::int64_t RunConfig::stage_count() const {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(stages.size()));
}

RunConfig RunConfig::at_stage(std::int64_t number) const {
  if (number < 0 || number >= stage_count())
    user_error("there is no stage {}: the configuration has {}", number + 1, stage_count());
  if (stages.empty()) return *this;
  return {stages[number], stages};
}

RunConfig RunConfig::alone() const {
  RunConfig config = *this;
  if (stage > 0) config.data.seed = static_cast<std::int64_t>(data_seed());
  config.stages.clear();
  config.stage = 0;
  return config;
}

std::string RunConfig::stage_title() const {
  return stages.empty() ? ""
                        : fmt::format("stage {} of {} ({})", stage + 1, stages.size(), stage_name);
}

std::int64_t RunConfig::steps_after() const {
  std::int64_t steps = 0;
  for (std::size_t i = static_cast<std::size_t>(stage) + 1; i < stages.size(); ++i)
    steps += stages[i].total_steps();
  return steps;
}

// ---- reading and writing

RunConfig parse_run_config(const std::string& text, const std::string& source,
                           const std::vector<std::string>& overrides) {
  const YamlDocument document(text, source, overrides, {{"cuda", "gpu"}});
  if (document.has("matrix"))
    user_error("{}: matrix is several runs: start them with kintsugi launch",
               document.where("matrix"));
  RunConfig config;
  const std::vector<std::string> keys = run_config_keys();
  const std::vector<Synonym> synonyms = run_config_synonyms();
  RunReader(document, keys, synonyms).read_all(config);
  if (config.stages.empty()) {
    // With train.tokens, the default of train.steps does not limit the run.
    if (config.train.tokens > 0 && !document.has("train.steps")) config.train.steps = 0;
    complete_stage(document, "", config);
    return config;
  }
  complete_stage_names(config.stages);
  for (StageConfig& stage : config.stages)
    complete_stage(document, fmt::format("stages[{}].", stage.stage), stage);
  relate_stages(document, config.stages);
  return config.at_stage(0);
}

RunConfig load_run_config(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides) {
  RunConfig config = parse_run_config(read_text_file(path), path.string(), overrides);
  resolve_tokenizer(config);
  return config;
}

std::string to_yaml(const RunConfig& config) {
  RunConfig copy = config.at_stage(0);  // describe() takes a mutable reference
  RunWriter writer;
  config.stages.empty() ? describe(writer, copy) : describe_common(writer, copy);
  return writer.text();
}

std::string to_public_yaml(const RunConfig& config) {
  RunConfig copy = config;
  copy.run.notify = {};
  for (StageConfig& stage : copy.stages) stage.run.notify = {};
  return to_yaml(copy);
}

std::string to_yaml(const Layout& layout) {
  Layout copy = layout;
  YamlWriter writer;
  describe(writer, copy);
  return writer.text();
}

void read_layout(const std::string& text, Layout& layout) {
  const YamlDocument document(text, "layout", {});
  YamlReader(document, {}).read(layout);
}

namespace {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

void collect(const YAML::Node& node, const std::string& key, KeyValues& values) {
  if (node.IsMap()) {
    for (const auto& entry : node)
      collect(entry.second, key.empty() ? entry.first.Scalar() : key + "." + entry.first.Scalar(),
              values);
  } else if (node.IsSequence() && node.size() > 0 && !node[0].IsScalar()) {
    for (std::size_t i = 0; i < node.size(); ++i)
      collect(node[i], fmt::format("{}[{}]", key, i), values);
  } else if (node.IsSequence()) {
    std::string list;
    for (const auto& item : node) list += (list.empty() ? "" : ", ") + item.Scalar();
    values.emplace_back(key, "[" + list + "]");
  } else {
    values.emplace_back(key, node.IsNull() ? "null" : node.Scalar());
  }
}

}  // namespace

KeyValues config_values(const RunConfig& config) {
  KeyValues values;
  collect(YAML::Load(to_yaml(config)), "", values);
  return values;
}

std::vector<std::string> run_config_keys() {
  RunConfig config;
  RunKeys keys;
  describe(keys, config);
  return keys.keys();
}

bool has_secrets(const RunConfig& config) {
  const auto has_some = [](const StageConfig& stage) {
    return stage.run.notify.command || stage.run.notify.webhook;
  };
  return has_some(config) || std::ranges::any_of(config.stages, has_some);
}

void write_config_file(const std::filesystem::path& path, const RunConfig& config) {
  if (has_secrets(config))
    write_private_file(path, to_yaml(config));
  else
    write_file_atomically(path, to_yaml(config));
}

}  // namespace kintsugi
