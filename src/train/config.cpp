#include "train/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <limits>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/yaml_reader.h"
#include "data/megatron_order.h"
#include "model/model_fields.h"

namespace kintsugi {

template <>
struct EnumWords<PipelineSchedule> {
  static constexpr std::array<std::string_view, 1> words = {"1f1b"};
};
template <>
struct EnumWords<DeviceChoice> {
  static constexpr std::array<std::string_view, 3> words = {"auto", "cpu", "cuda"};
};
template <>
struct EnumWords<DataOrder> {
  static constexpr std::array<std::string_view, 2> words = {"kintsugi", "megatron"};
};

// Values whose words are kept beside their type.
template <class T, T (*Parse)(std::string_view)>
struct NamedScalar {
  static std::string wanted() { return "a name"; }
  static T parse(const std::string& text) { return Parse(text); }
  static std::string format(T value) { return std::string(to_string(value)); }
};
template <>
struct YamlScalar<ScheduleKind> : NamedScalar<ScheduleKind, parse_schedule> {};
template <>
struct YamlScalar<Recompute> : NamedScalar<Recompute, parse_recompute> {};
template <>
struct YamlScalar<DType> : NamedScalar<DType, parse_precision> {};

namespace {

template <class E>
std::string_view word_of(E value) {
  return EnumWords<E>::words.at(static_cast<std::size_t>(value));
}

}  // namespace

std::string_view to_string(PipelineSchedule schedule) { return word_of(schedule); }
std::string_view to_string(DeviceChoice device) { return word_of(device); }

// ---- the keys, each described once. Upper limits keep products of sizes within 64 bits.

constexpr double kMaxSize = std::numeric_limits<std::int32_t>::max();
constexpr double kMaxSteps = 1e15;

template <class V>
void describe(V& v, RunSection& c) {
  v("dir", c.dir);
  v("seed", c.seed);
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
  v("split", c.split);
  v("prefetch", c.prefetch, between(1, 1024));
}

template <class V>
void describe(V& v, BatchConfig& c) {
  v("global", c.global, between(1, kMaxSize));
  v("micro", c.micro, between(1, kMaxSize));
}

template <class V>
void describe(V& v, OptimizerConfig& c) {
  v("lr", c.lr, above(0));
  v("min_lr", c.min_lr, at_least(0));
  v("warmup_steps", c.warmup_steps, between(0, kMaxSteps));
  v("schedule", c.schedule);
  v("decay_steps", c.decay_steps, between(0, kMaxSteps));
  v("weight_decay", c.weight_decay, at_least(0));
  v("betas", c.betas, kFraction);
  v("eps", c.eps, above(0));
  v("clip", c.clip, at_least(0));
  v("moments", c.moments);
  v("stochastic_rounding", c.stochastic_rounding);
}

template <class V>
void describe(V& v, LossScaleOptions& c) {
  v("initial", c.initial, above(0));
  v("growth_interval", c.growth_interval, at_least(1));
  v("hysteresis", c.hysteresis, at_least(1));
  v("minimum", c.minimum, above(0));
}

template <class V>
void describe(V& v, TrainConfig& c) {
  v("steps", c.steps, between(0, kMaxSteps));
  v("tokens", c.tokens, at_least(0));
  v("eval_every", c.eval_every, at_least(0));
  v("eval_batches", c.eval_batches, between(0, kMaxSize));
  v("checkpoint_every", c.checkpoint_every, at_least(0));
  v("keep_checkpoints", c.keep_checkpoints, at_least(0));
  v("log_every", c.log_every, at_least(1));
  v("precision", c.precision);
  v("dropout", c.dropout, kFraction);
  v("classifier_chunk", c.classifier_chunk, between(0, kMaxSize));
  v("loss_scale", c.loss_scale);
}

template <class V>
void describe(V& v, LayoutConfig& c) {
  v("tp", c.tp, between(1, kMaxSize));
  v("cp", c.cp, between(1, kMaxSize));
  v("pp", c.pp, between(1, kMaxSize));
  v("dp", c.dp, between(1, kMaxSize));
  v("chunks", c.chunks, between(1, kMaxSize));
  v("zero", c.zero, between(0, 3));
  v("shard_group", c.shard_group, between(0, kMaxSize));
  v("sequence_parallel", c.sequence_parallel);
  v("schedule", c.schedule);
  v("recompute", c.recompute);
}

namespace {

// model/ describes its own fields; here they are one section.
struct ModelSection {
  ModelConfig& model;
  std::string& preset;
  std::string& config;
};

}  // namespace

template <class V>
void describe(V& v, CudaConfig& c) {
  v("device", c.device);
  v("deterministic", c.deterministic);
  v("graphs", c.graphs);
  v("tf32", c.tf32);
  v("matmul_cache", c.matmul_cache);
}

template <class V>
void describe(V& v, RunConfig& c) {
  v("run", c.run);
  v("model", ModelSection{c.model, c.model_preset, c.model_config});
  v("data", c.data);
  v("batch", c.batch);
  v("optimizer", c.optimizer);
  v("train", c.train);
  v("layout", c.layout);
  v("device", c.device);
  v("cuda", c.cuda);
  v("threads", c.threads, between(0, 1024));
}

namespace {

class RunReader : public YamlReader {
 public:
  using YamlReader::YamlReader;
  using YamlReader::operator();

  void operator()(const char* key, ModelSection section) {
    if (!take(key))
      user_error("{} says nothing about the model: add for example model: {{preset: llama-tiny}}",
                 document().source());
    const YAML::Node node = document().root()[key];
    section.model = read_model_section(node, document().source_of(key));
    if (const YAML::Node preset = node["preset"]) section.preset = preset.Scalar();
    if (const YAML::Node config = node["config"]) section.config = config.Scalar();
  }

  void read_all(RunConfig& config) {
    describe(*this, config);
    refuse_other_keys();
  }
};

class RunWriter : public YamlWriter {
 public:
  using YamlWriter::operator();
  void operator()(const char* key, ModelSection section) {
    std::string origin;
    if (!section.preset.empty()) origin = "from preset " + section.preset;
    if (!section.config.empty()) origin = "from " + section.config;
    block(key, model_to_yaml(section.model), origin);
  }
};

class RunKeys : public YamlKeys {
 public:
  using YamlKeys::operator();
  void operator()(const char* key, ModelSection) {
    for (const std::string& name : model_section_keys()) add(std::string(key) + "." + name);
  }
};

// ---- what no single key can know

class Checks {
 public:
  Checks(const YamlDocument& document, const RunConfig& config)
      : document_(document), config_(config) {}

  void run() const {
    check_data();
    check_sources(config_.data.train, "data.train");
    check_sources(config_.data.valid, "data.valid");
    check_shares();
    check_order();
    check_batch();
    check_length();
    check_optimizer();
    check_loss_scale();
    check_single_process();
  }

 private:
  template <class... Args>
  [[noreturn]] void complain(const char* key, fmt::format_string<Args...> format,
                             Args&&... args) const {
    user_error("{}: {} {}", document_.where(key), key,
               fmt::format(format, std::forward<Args>(args)...));
  }

  void check_data() const {
    const DataConfig& data = config_.data;
    if (data.train.empty())
      complain("data.train", "is empty: give at least one text, as [{{path: corpus.txt}}]");
    const ModelConfig& model = config_.model;
    if (model.traits().positions == PositionKind::Learned &&
        data.sequence_length > model.max_positions)
      complain("data.sequence_length",
               "is {}, but the learned positions of the model end at {}: shorten it or raise "
               "model.max_positions",
               data.sequence_length, model.max_positions);
  }

  template <class Source>
  void check_sources(const std::vector<Source>& sources, const char* key) const {
    std::set<std::string> names;
    for (const Source& source : sources) {
      if (source.path.empty()) complain(key, "has an item without a path: add one");
      if (!names.insert(source.name).second)
        complain(key, "has two items of the name {}: give each its own, as {{path: {}, name: …}}",
                 source.name, source.path);
    }
  }

  // Weights, token targets or the sources' own sizes decide their shares: one of the three.
  void check_shares() const {
    const DataConfig& data = config_.data;
    const bool targets = data.train.front().tokens > 0;
    for (const DataSource& source : data.train) {
      if (data.temperature > 0 && (source.weight != 1.0 || source.tokens > 0))
        complain("data.temperature",
                 "sets the shares by the sizes of the sources, but {} has {} of its own: remove "
                 "one of them",
                 source.name, source.tokens > 0 ? "tokens" : "a weight");
      if (targets != (source.tokens > 0) || (targets && source.weight != 1.0))
        complain("data.train",
                 "mixes weights and tokens (see {}): give every source a weight, or every source "
                 "tokens",
                 source.name);
    }
  }

  void check_order() const {
    const DataConfig& data = config_.data;
    try {
      parse_megatron_split(data.split);
    } catch (const UserError& error) {
      user_error("{}: data.split: {}", document_.where("data.split"), error.what());
    }
    if (data.order == DataOrder::Kintsugi) return;
    for (const DataSource& source : data.train)
      if (source.max_epochs > 0 || data.max_epochs > 0)
        complain("data.order", "is megatron, which knows no max_epochs: remove it");
    if (config_.run.seed > std::numeric_limits<std::uint32_t>::max())
      complain("run.seed", "is {}, but Megatron's generator takes 32 bits: use a smaller one",
               config_.run.seed);
  }

  void check_batch() const {
    const auto [global, micro] = config_.batch;
    if (global % micro == 0) return;
    const std::int64_t below = global / micro * micro;
    complain("batch.global", "is {}, which is not a multiple of batch.micro {}: use {}", global,
             micro,
             below == 0 ? fmt::format("{}", micro) : fmt::format("{} or {}", below, below + micro));
  }

  void check_length() const {
    const TrainConfig& train = config_.train;
    if (train.steps == 0 && train.tokens == 0)
      complain("train.steps",
               "is 0 and so is train.tokens: set one of them, or the run has no end");
  }

  void check_optimizer() const {
    const OptimizerConfig& optimizer = config_.optimizer;
    const std::int64_t steps = config_.total_steps();
    if (optimizer.min_lr > optimizer.lr)
      complain("optimizer.min_lr", "is {}, above optimizer.lr {}: lower it", optimizer.min_lr,
               optimizer.lr);
    if (optimizer.warmup_steps > steps)
      complain("optimizer.warmup_steps", "is {}, but the run has only {} steps: use fewer",
               optimizer.warmup_steps, steps);
    if (optimizer.moments != DType::F32 && optimizer.moments != DType::BF16)
      complain("optimizer.moments", "is {}: moments are fp32 or bf16",
               to_string(optimizer.moments));
    if (optimizer.stochastic_rounding && optimizer.moments != DType::BF16)
      complain("optimizer.stochastic_rounding",
               "rounds bf16 moments, and these are {}: set optimizer.moments to bf16 or remove it",
               to_string(optimizer.moments));
    if (optimizer.decay_steps == 0) return;
    if (optimizer.schedule != ScheduleKind::Wsd)
      complain("optimizer.decay_steps",
               "is {}, but schedule {} has no such phase: remove it or use wsd",
               optimizer.decay_steps, to_string(optimizer.schedule));
    if (optimizer.warmup_steps + optimizer.decay_steps > steps)
      complain("optimizer.decay_steps",
               "is {}, which with {} steps of warm-up passes the run's {}: use fewer",
               optimizer.decay_steps, optimizer.warmup_steps, steps);
  }

  void check_loss_scale() const {
    const LossScaleOptions& scale = config_.train.loss_scale;
    if (scale.initial < scale.minimum)
      complain("train.loss_scale.initial", "is {}, below train.loss_scale.minimum {}: raise it",
               scale.initial, scale.minimum);
  }

  // This version has no communicator yet.
  void check_single_process() const {
    const LayoutConfig& layout = config_.layout;
    const auto demand = [&](const char* key, auto value, decltype(value) only) {
      if (value != only)
        complain(key, "is {}, but this build runs on one process only: set it to {}", value, only);
    };
    demand("layout.tp", layout.tp, 1);
    demand("layout.cp", layout.cp, 1);
    demand("layout.pp", layout.pp, 1);
    demand("layout.dp", layout.dp.value_or(1), 1);
    demand("layout.chunks", layout.chunks, 1);
    demand("layout.zero", layout.zero, 0);
    demand("layout.shard_group", layout.shard_group, 0);
    demand("layout.sequence_parallel", layout.sequence_parallel, false);
  }

  const YamlDocument& document_;
  const RunConfig& config_;
};

}  // namespace

namespace {

// "fi" of store/fi, store/fi.txt and store/fi/.
std::string name_of(const std::string& path) {
  std::filesystem::path whole = path;
  if (!whole.has_filename()) whole = whole.parent_path();
  const std::string stem = whole.stem().string();
  return stem.empty() ? path : stem;
}

}  // namespace

std::int64_t RunConfig::total_steps() const {
  if (train.tokens == 0) return train.steps;
  const std::int64_t needed = (train.tokens - 1) / tokens_per_step() + 1;
  return train.steps == 0 ? needed : std::min(train.steps, needed);
}

RunConfig parse_run_config(const std::string& text, const std::string& source,
                           const std::vector<std::string>& overrides) {
  const YamlDocument document(text, source, overrides);
  RunConfig config;
  RunReader(document, run_config_keys()).read_all(config);
  config.vocab_size_given = document.has("model.vocab_size");
  for (DataSource& source : config.data.train)
    if (source.name.empty()) source.name = name_of(source.path);
  for (ValidSource& source : config.data.valid)
    if (source.name.empty()) source.name = name_of(source.path);
  // A run measured in tokens is not cut short by the default number of steps.
  if (config.train.tokens > 0 && !document.has("train.steps")) config.train.steps = 0;
  Checks(document, config).run();
  return config;
}

RunConfig load_run_config(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides) {
  return parse_run_config(read_text_file(path), path.string(), overrides);
}

std::string to_yaml(const RunConfig& config) {
  RunConfig copy = config;  // a description takes fields that a reader may set
  RunWriter writer;
  describe(writer, copy);
  return writer.text();
}

std::vector<std::string> run_config_keys() {
  RunConfig config;
  RunKeys keys;
  describe(keys, config);
  return keys.keys();
}

}  // namespace kintsugi
