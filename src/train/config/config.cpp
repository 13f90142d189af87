#include "train/config/config.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"
#include "core/yaml_reader.h"
#include "model/model_fields.h"
#include "parallel/layer_split.h"
#include "train/checkpoint/folder.h"
#include "train/config/checks.h"
#include "train/config/model.h"
#include "train/config/stages.h"
#include "train/config/synonyms.h"

namespace kintsugi {

template <>
struct EnumWords<DeviceChoice> {
  static constexpr std::array<std::string_view, 3> words = {"auto", "cpu", "cuda"};
};
template <>
struct EnumWords<DataOrder> {
  static constexpr std::array<std::string_view, 3> words = {"kintsugi", "megatron",
                                                            "megatron-0.10"};
};
template <>
struct EnumWords<Packing> {
  static constexpr std::array<std::string_view, 2> words = {"windows", "best_fit"};
};
template <>
struct EnumWords<NewTokens> {
  static constexpr std::array<std::string_view, 2> words = {"mean", "subtokens"};
};
template <>
struct EnumWords<OptimizerKind> {
  static constexpr std::array<std::string_view, 2> words = {"adamw", "muon"};
};
template <>
struct EnumWords<LrAdjustment> {
  static constexpr std::array<std::string_view, 2> words = {"match_rms_adamw", "original"};
};
template <>
struct EnumWords<UpdateLocation> {
  static constexpr std::array<std::string_view, 3> words = {"auto", "device", "host"};
};

// For types that have their own to_string and parse function.
template <class T, T (*Parse)(std::string_view)>
struct NamedScalar {
  static std::string expected() { return "a name"; }
  static T parse(const std::string& text) { return Parse(text); }
  static std::string format(T value) { return std::string(to_string(value)); }
};
template <>
struct YamlScalar<ScheduleKind> : NamedScalar<ScheduleKind, parse_schedule> {};
template <>
struct YamlScalar<PipelineKind> : NamedScalar<PipelineKind, parse_pipeline_kind> {};
template <>
struct YamlScalar<Recompute> : NamedScalar<Recompute, parse_recompute> {};
template <>
struct YamlScalar<DType> : NamedScalar<DType, parse_precision> {};

// Layers of each pipeline chunk: "7,9,9,7", or auto.
template <>
struct YamlScalar<std::vector<int>> {
  static std::string expected() { return "a string"; }
  static std::vector<int> parse(const std::string& text) { return parse_split(text); }
  static std::string format(const std::vector<int>& split) {
    return YamlScalar<std::string>::format(
        split.empty() ? "auto" : fmt::format("{}", fmt::join(split, ",")));
  }
};

namespace {

template <class E>
std::string_view word_of(E value) {
  return EnumWords<E>::words.at(static_cast<std::size_t>(value));
}

}  // namespace

std::string_view to_string(DeviceChoice device) { return word_of(device); }

// ---- the keys, each described once. With the upper limits, sizes multiply without 64-bit
// overflow.

constexpr double kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr double kMaxSteps = 1e15;
constexpr std::size_t kMostStages = 100;

template <class V>
void describe(V& v, RunSection& c) {
  v("dir", c.dir);
  v("seed", c.seed);
  v("from", c.from);
}

template <class V>
void describe(V& v, DataSource& c) {
  v("path", c.path);
  v("name", c.name);
  v("weight", c.weight, above(0));
  v("tokens", c.tokens, at_least(0));
  v("max_epochs", c.max_epochs, at_least(0));
}

template <class V>
void describe(V& v, ValidSource& c) {
  v("path", c.path);
  v("name", c.name);
}

template <class V>
void describe(V& v, DataConfig& c) {
  v("train", c.train);
  v("valid", c.valid);
  v("valid_fraction", c.valid_fraction, kFraction);
  v("tokenizer", c.tokenizer);
  v("sequence_length", c.sequence_length, between(1, kMaxSize));
  v("temperature", c.temperature, at_least(0));
  v("max_epochs", c.max_epochs, at_least(0));
  v("document_mask", c.document_mask);
  v("boundary_loss", c.boundary_loss);
  v("order", c.order);
  v("packing", c.packing);
  v("split", c.split);
  v("prefetch", c.prefetch, between(1, 1024));
}

namespace {

struct BatchSection {
  std::int64_t& global;
  std::int64_t& micro;  // Layout::micro_batch
  BatchRamp& ramp;
};

}  // namespace

template <class V>
void describe(V& v, BatchRamp& c) {
  v("start", c.start, between(0, kMaxSize));
  v("increment", c.increment, between(0, kMaxSize));
  v("samples", c.samples, between(0, kMaxSteps));
}

template <class V>
void describe(V& v, BatchSection& c) {
  v("global", c.global, between(1, kMaxSize));
  v("micro", c.micro, between(1, kMaxSize));
  v("ramp", c.ramp);
}

template <class V>
void describe(V& v, MuonConfig& c) {
  v("lr", c.lr, at_least(0));
  v("momentum", c.momentum, kFraction);
  v("nesterov", c.nesterov);
  v("steps", c.steps, between(1, 20));
  v("adjust_lr", c.adjust_lr);
  v("precision", c.precision);
}

template <class V>
void describe(V& v, SkipStepOptions& c) {
  v("deviations", c.deviations, at_least(0));
  v("window", c.window, between(2, 1 << 16));
}

template <class V>
void describe(V& v, OptimizerConfig& c) {
  v("kind", c.kind);
  v("lr", c.lr, above(0));
  v("min_lr", c.min_lr, at_least(0));
  v("warmup_steps", c.warmup_steps, between(0, kMaxSteps));
  v("schedule", c.schedule);
  v("decay_steps", c.decay_steps, between(0, kMaxSteps));
  v("weight_decay", c.weight_decay, at_least(0));
  v("decay_embeddings", c.decay_embeddings);
  v("betas", c.betas, kFraction);
  v("eps", c.eps, above(0));
  v("clip", c.clip, at_least(0));
  v("moments", c.moments);
  v("stochastic_rounding", c.stochastic_rounding);
  v("muon", c.muon);
  v("skip_step", c.skip_step);
}

template <class V>
void describe(V& v, LossScaleOptions& c) {
  v("initial", c.initial, above(0));
  v("growth_interval", c.growth_interval, at_least(1));
  v("hysteresis", c.hysteresis, at_least(1));
  v("minimum", c.minimum, above(0));
}

template <class V>
void describe(V& v, EmaOptions& c) {
  v("decay", c.decay, kFraction);
  v("every", c.every, between(1, kMaxSteps));
}

// The keys that each stage may set for itself.
template <class V>
void describe_training(V& v, TrainConfig& c) {
  v("eval_every", c.eval_every, at_least(0));
  v("eval_batches", c.eval_batches, between(0, kMaxSize));
  v("checkpoint_every", c.checkpoint_every, at_least(0));
  v("keep_checkpoints", c.keep_checkpoints, at_least(0));
  v("log_every", c.log_every, at_least(1));
  v("precision", c.precision);
  v("dropout", c.dropout, kFraction);
  v("classifier_chunk", c.classifier_chunk, between(0, kMaxSize));
  v("z_loss", c.z_loss, at_least(0));
  v("loss_scale", c.loss_scale);
  v("ema", c.ema);
  v("max_skipped_steps", c.max_skipped_steps, between(1, kMaxSteps));
}

template <class V>
void describe(V& v, TrainConfig& c) {
  v("steps", c.steps, between(0, kMaxSteps));
  v("tokens", c.tokens, at_least(0));
  v("save", c.save);
  describe_training(v, c);
}

template <class V>
void describe(V& v, Layout& c) {
  const auto integer = [&v](const char* key, int& value, Range range) {
    std::int64_t wide = value;
    v(key, wide, range);
    value = static_cast<int>(wide);
  };
  std::optional<std::int64_t> dp;
  if (c.dp > 0) dp = c.dp;
  integer("tp", c.tp, between(1, kMaxSize));
  integer("cp", c.cp, between(1, kMaxSize));
  integer("pp", c.pp, between(1, kMaxSize));
  v("dp", dp, between(1, kMaxSize));
  c.dp = static_cast<int>(dp.value_or(0));
  integer("chunks", c.chunks, between(1, kMaxSize));
  integer("zero", c.zero, between(0, 3));
  integer("shard_group", c.shard_group, between(0, kMaxSize));
  v("sequence_parallel", c.sequence_parallel);
  v("schedule", c.schedule);
  v("split", c.split);
  v("recompute", c.recompute);
  integer("recompute_every", c.recompute_every, between(1, kMaxSize));
}

namespace {

// The section `model`, whose keys are described in model/.
struct ModelSection {
  ModelConfig& model;
  std::string& preset;
  std::string& config;
  std::string& init;
  NewTokens& new_tokens;
  const std::string& run;  // run.dir
};

// The section `layout`: its keys, or the word `auto`.
struct LayoutSection {
  Layout& layout;
  bool& automatic;
};

// The section `train` of a stage, and that of the whole run beside `stages`.
struct StageTraining {
  TrainConfig& train;
};
struct RunTraining {
  bool& save;
};

// `rope_scaling` of a stage.
struct RopeSection {
  std::optional<RopeScaling>& scaling;
};

// The list `stages`.
struct StageList {
  RunConfig& run;
};

}  // namespace

template <class V>
void describe(V& v, CommConfig& c) {
  v("reduce", c.reduce);
  v("check", c.check);
  v("deterministic", c.deterministic);
  v("timeout_s", c.timeout_s, above(0));
  v("allow_sockets", c.allow_sockets);
  v("share_gpu", c.share_gpu);
  v("register_buffers", c.register_buffers);
}

template <class V>
void describe(V& v, OffloadConfig& c) {
  v("optimizer", c.optimizer);
  v("gradients", c.gradients);
  v("activations", c.activations);
  v("update", c.update);
}

template <class V>
void describe(V& v, CudaConfig& c) {
  v("device", c.device);
  v("deterministic", c.deterministic);
  v("graphs", c.graphs);
  v("tf32", c.tf32);
  v("matmul_cache", c.matmul_cache);
}

template <class V>
void describe(V& v, StageTraining& c) {
  describe_training(v, c.train);
}

template <class V>
void describe(V& v, RunTraining& c) {
  v("save", c.save);
}

ModelSection model_section(RunConfig& c) {
  return {c.model, c.model_preset, c.model_config, c.model_init, c.model_new_tokens, c.run.dir};
}

// One stage of `stages`. All other keys are those of the whole run.
template <class V>
void describe_stage(V& v, RunConfig& c) {
  v("name", c.stage_name);
  v("steps", c.train.steps, between(0, kMaxSteps));
  v("tokens", c.train.tokens, at_least(0));
  v("rope_theta", c.model.rope_theta, above(0));
  v("rope_scaling", RopeSection{c.model.rope_scaling});
  v("data", c.data);
  BatchSection batch{c.batch.global, c.layout.micro_batch, c.batch.ramp};
  v("batch", batch);
  v("optimizer", c.optimizer);
  StageTraining train{c.train};
  v("train", train);
  v("layout", LayoutSection{c.layout, c.layout_auto});
  v("offload", c.offload);
}

// What is written beside `stages`, each of which has all of its own keys.
template <class V>
void describe_common(V& v, RunConfig& c) {
  v("run", c.run);
  v("model", model_section(c));
  RunTraining train{c.train.save};
  v("train", train);
  v("comm", c.comm);
  v("device", c.device);
  v("cuda", c.cuda);
  v("threads", c.threads, between(0, 1024));
  v("stages", StageList{c});
}

template <class V>
void describe(V& v, RunConfig& c) {
  v("run", c.run);
  v("model", model_section(c));
  v("data", c.data);
  BatchSection batch{c.batch.global, c.layout.micro_batch, c.batch.ramp};
  v("batch", batch);
  v("optimizer", c.optimizer);
  v("train", c.train);
  v("layout", LayoutSection{c.layout, c.layout_auto});
  v("comm", c.comm);
  v("offload", c.offload);
  v("device", c.device);
  v("cuda", c.cuda);
  v("threads", c.threads, between(0, 1024));
  v("stages", StageList{c});  // the last one: the keys before it are its defaults
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
    read_new_tokens(node["new_tokens"], section.new_tokens);
  }

  explicit RunReader(YamlReader reader) : YamlReader(std::move(reader)) {}

  void operator()(const char* key, LayoutSection section) {
    if (!take(key)) return;
    const YAML::Node layout = node()[key];
    section.automatic = layout.IsScalar() && layout.Scalar() == "auto";
    if (!section.automatic) YamlReader::operator()(key, section.layout);
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
    std::vector<RunConfig> stages(items->size(), run);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      stages[i].stage = static_cast<std::int64_t>(i);
      RunReader((*items)[i]).read_stage(stages[i]);
    }
    run.stages = std::move(stages);
  }

  void read_stage(RunConfig& stage) {
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
  void read_new_tokens(const YAML::Node& node, NewTokens& value) const {
    if (!node) return;
    try {
      if (!node.IsScalar()) user_error("must be mean or subtokens, not {}", in_words(node));
      value = YamlScalar<NewTokens>::parse(node.Scalar());
    } catch (const UserError& error) {
      user_error("{}: model.new_tokens: {}", document().where("model.new_tokens"), error.what());
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
    for (RunConfig& stage : list.run.stages) {
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
          fmt::format("{}init: {}\nnew_tokens: {}\n", model_to_yaml(section.model), init,
                      YamlScalar<NewTokens>::format(section.new_tokens)),
          origin);
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
};

// store/fi, store/fi.txt and store/fi/ are all named "fi".
std::string name_of(const std::string& path) {
  std::filesystem::path whole = path;
  if (!whole.has_filename()) whole = whole.parent_path();
  const std::string stem = whole.stem().string();
  return stem.empty() ? path : stem;
}

}  // namespace

std::int64_t RunConfig::total_steps() const {
  if (train.tokens == 0) return train.steps;
  const std::int64_t samples = (train.tokens - 1) / data.sequence_length + 1;
  const std::int64_t needed = batches().steps_for(samples);
  return train.steps == 0 ? needed : std::min(train.steps, needed);
}

namespace {

// Completes a stage, or a run without stages, and checks it. `prefix` is that of the stage's keys.
void complete_stage(const YamlDocument& document, const std::string& prefix, RunConfig& config) {
  config.vocab_size_given = document.has("model.vocab_size");
  config.max_positions_given = document.has("model.max_positions");
  config.rope_scaling_given =
      document.has("model.rope_scaling") || document.has(prefix + "rope_scaling");
  for (DataSource& source : config.data.train)
    if (source.name.empty()) source.name = name_of(source.path);
  for (ValidSource& source : config.data.valid)
    if (source.name.empty()) source.name = name_of(source.path);
  check_run_config(document, prefix, config);
  set_trained_positions(config);
}

}  // namespace

RunConfig parse_run_config(const std::string& text, const std::string& source,
                           const std::vector<std::string>& overrides) {
  const YamlDocument document(text, source, overrides);
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
  for (RunConfig& stage : config.stages)
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

}  // namespace kintsugi
