#pragma once

#include <fmt/ranges.h>

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/yaml_reader.h"
#include "parallel/layout.h"
#include "train/config/config.h"

// The keys of a configuration. A describe() names every key of a section once; readers, writers and
// the list of keys in config.cpp visit them.

namespace kintsugi {

template <>
inline constexpr EnumWords<4> kEnumWords<DeviceChoice> = {"auto", "cpu", "cuda", "hip"};
template <>
inline constexpr EnumWords<3> kEnumWords<DataOrder> = {"kintsugi", "megatron", "megatron-0.10"};
template <>
inline constexpr EnumWords<3> kEnumWords<Packing> = {"windows", "best_fit", "single"};
template <>
inline constexpr EnumWords<2> kEnumWords<NewTokens> = {"mean", "subtokens"};
template <>
inline constexpr EnumWords<2> kEnumWords<OptimizerKind> = {"adamw", "muon"};
template <>
inline constexpr EnumWords<2> kEnumWords<LrAdjustment> = {"match_rms_adamw", "original"};
template <>
inline constexpr EnumWords<3> kEnumWords<UpdateLocation> = {"auto", "device", "host"};
template <>
inline constexpr EnumWords<4> kEnumWords<SpikeAction> = {"none", "warn", "rewind", "stop"};
template <>
inline constexpr EnumWords<4> kEnumWords<ObjectiveKind> = {"language_model", "sft", "dpo",
                                                           "classification"};
template <>
inline constexpr EnumWords<3> kEnumWords<Fp8Recipe> = {"none", "rowwise", "tensorwise"};
template <>
inline constexpr EnumWords<3> kEnumWords<FastAccumulation> = {"forward", "all", "none"};
template <>
inline constexpr EnumWords<2> kEnumWords<AdapterKind> = {"none", "lora"};
template <>
inline constexpr EnumWords<2> kEnumWords<BalanceScope> = {"sequence", "batch"};

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
struct YamlScalar<Dispatch> : NamedScalar<Dispatch, parse_dispatch> {};
template <>
struct YamlScalar<ContextMethod> : NamedScalar<ContextMethod, parse_context_method> {};
template <>
struct YamlScalar<PipelineKind> : NamedScalar<PipelineKind, parse_pipeline_kind> {};
template <>
struct YamlScalar<Recompute> : NamedScalar<Recompute, parse_recompute> {};
template <>
struct YamlScalar<DType> : NamedScalar<DType, parse_precision> {};

template <>
struct YamlScalar<Duration> {
  static std::string expected() { return "a time such as 90s, 30min or 2h"; }
  static Duration parse(const std::string& text) { return {parse_duration_s(text)}; }
  static std::string format(Duration value) { return fmt::format("{}s", value.seconds); }
};

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

// A duration with its unit, or auto.
template <>
struct YamlScalar<std::optional<Duration>> {
  static std::string expected() { return "auto or a duration such as 6h"; }
  static std::optional<Duration> parse(const std::string& text) {
    if (text == "auto") return {};
    const double seconds = parse_duration_s(text);
    if (seconds <= 0) user_error("a duration above 0 is expected, found {}", text);
    return Duration{seconds};
  }
  static std::string format(const std::optional<Duration>& value) {
    return value ? fmt::format("{}s", value->seconds) : "auto";
  }
};

// ---- the keys, each described once. With the upper limits, sizes multiply without 64-bit
// overflow.

inline constexpr double kMaxSize = std::numeric_limits<std::int32_t>::max();
inline constexpr double kMaxSteps = 1e15;
inline constexpr std::size_t kMostStages = 100;

void describe(auto& v, NotifyConfig& c) {
  v("command", c.command);
  v("webhook", c.webhook);
  v("on", c.on);
  v("stalled_after", c.stalled_after);
}

void describe(auto& v, RunSection& c) {
  v("dir", c.dir);
  v("seed", c.seed);
  v("from", c.from);
  v("time_limit", c.time_limit);
  v("stop_margin", c.stop_margin);
  v("node_ledger", c.node_ledger);
  v("tensorboard", c.tensorboard);
  v("prometheus", c.prometheus);
  v("wandb", c.wandb);
  v("notify", c.notify);
}

void describe(auto& v, DataSource& c) {
  v("path", c.path);
  v("name", c.name);
  v("weight", c.weight, above(0));
  v("tokens", c.tokens, at_least(0));
  v("max_epochs", c.max_epochs, at_least(0));
}

void describe(auto& v, ValidSource& c) {
  v("path", c.path);
  v("name", c.name);
}

void describe(auto& v, DataConfig& c) {
  v("train", c.train);
  v("valid", c.valid);
  v("valid_fraction", c.valid_fraction, kFraction);
  v("tokenizer", c.tokenizer);
  v("seed", c.seed, at_least(0));
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

struct BatchSection {
  std::int64_t& global;
  std::int64_t& micro;  // Layout::micro_batch
  BatchRamp& ramp;
};

void describe(auto& v, BatchRamp& c) {
  v("start", c.start, between(0, kMaxSize));
  v("increment", c.increment, between(0, kMaxSize));
  v("samples", c.samples, between(0, kMaxSteps));
}

void describe(auto& v, BatchSection& c) {
  v("global", c.global, between(1, kMaxSize));
  v("micro", c.micro, between(1, kMaxSize));
  v("ramp", c.ramp);
}

void describe(auto& v, MuonConfig& c) {
  v("lr", c.lr, at_least(0));
  v("momentum", c.momentum, kFraction);
  v("nesterov", c.nesterov);
  v("steps", c.steps, between(1, 20));
  v("adjust_lr", c.adjust_lr);
  v("precision", c.precision);
}

void describe(auto& v, SkipStepOptions& c) {
  v("deviations", c.deviations, at_least(0));
  v("window", c.window, between(2, 1 << 16));
}

void describe(auto& v, OptimizerConfig& c) {
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

void describe(auto& v, LossScaleOptions& c) {
  v("initial", c.initial, above(0));
  v("growth_interval", c.growth_interval, at_least(1));
  v("hysteresis", c.hysteresis, at_least(1));
  v("minimum", c.minimum, above(0));
}

void describe(auto& v, EmaOptions& c) {
  v("decay", c.decay, kFraction);
  v("every", c.every, between(1, kMaxSteps));
}

void describe(auto& v, SpikeOptions& c) {
  v("action", c.action);
  v("window", c.window, between(2, 1 << 16));
  v("threshold", c.threshold, above(0));
  v("rewind_steps", c.rewind_steps, between(1, kMaxSteps));
  v("skip_batches", c.skip_batches, between(0, kMaxSize));
  v("max_rewinds", c.max_rewinds, between(1, kMaxSize));
}

void describe(auto& v, SamplesConfig& c) {
  v("prompts", c.prompts, StringKind::Text);
  v("tokens", c.tokens, between(1, 1 << 20));
}

void describe(auto& v, Fp8Config::Layers& c) {
  v("first", c.first, between(0, kMaxSize));
  v("last", c.last, between(0, kMaxSize));
}

void describe(auto& v, Fp8Config& c) {
  v("recipe", c.recipe);
  v("wgrad", c.wgrad);
  v("filter", c.filter);
  v("fast_accumulation", c.fast_accumulation);
  v("power_of_two_scales", c.power_of_two_scales);
  v("keep_weights", c.keep_weights);
  v("bf16_layers", c.bf16_layers);
  v("statistics_every", c.statistics_every, at_least(0));
}

void describe(auto& v, BalanceConfig& c) {
  v("loss", c.loss, at_least(0));
  v("scope", c.scope);
  v("z_loss", c.z_loss, at_least(0));
  v("bias_speed", c.bias_speed, at_least(0));
  v("capacity", c.capacity, at_least(0));
  v("statistics_every", c.statistics_every, at_least(0));
}

// The keys that each stage may set for itself.
void describe_training(auto& v, TrainConfig& c) {
  v("eval_every", c.eval_every, at_least(0));
  v("eval_batches", c.eval_batches, between(0, kMaxSize));
  v("eval_tasks", c.eval_tasks);
  v("eval_tasks_every", c.eval_tasks_every, between(0, kMaxSteps));
  v("eval_tasks_limit", c.eval_tasks_limit, between(0, kMaxSize));
  v("checkpoint_every", c.checkpoint_every, at_least(0));
  v("keep_checkpoints", c.keep_checkpoints, at_least(0));
  v("keep_every", c.keep_every, between(0, kMaxSteps));
  v("async_save", c.async_save);
  v("max_failed_saves", c.max_failed_saves, between(1, kMaxSteps));
  v("mtbf", c.mtbf);
  v("memory_copy_every", c.memory_copy_every, between(0, kMaxSteps));
  v("log_every", c.log_every, at_least(1));
  v("precision", c.precision);
  v("fp8", c.fp8);
  v("balance", c.balance);
  v("dropout", c.dropout, kFraction);
  v("classifier_chunk", c.classifier_chunk, between(0, kMaxSize));
  v("z_loss", c.z_loss, at_least(0));
  v("loss_scale", c.loss_scale);
  v("ema", c.ema);
  v("max_skipped_steps", c.max_skipped_steps, between(1, kMaxSteps));
  v("spikes", c.spikes);
  v("samples", c.samples);
  v("verify_replicas_every", c.verify_replicas_every, at_least(0));
}

void describe(auto& v, TrainConfig& c) {
  v("steps", c.steps, between(0, kMaxSteps));
  v("tokens", c.tokens, at_least(0));
  v("save", c.save);
  describe_training(v, c);
}

void describe(auto& v, Layout& c) {
  const auto integer = [&v](const char* key, int& value, Range range) {
    std::int64_t wide = value;
    v(key, wide, range);
    value = static_cast<int>(wide);
  };
  // 0 is written as auto.
  const auto chosen = [&v](const char* key, int& value) {
    std::optional<std::int64_t> wide;
    if (value > 0) wide = value;
    v(key, wide, between(1, kMaxSize));
    value = static_cast<int>(wide.value_or(0));
  };
  integer("tp", c.tp, between(1, kMaxSize));
  integer("cp", c.cp, between(1, kMaxSize));
  v("context", c.context);
  integer("pp", c.pp, between(1, kMaxSize));
  chosen("dp", c.dp);
  chosen("ep", c.ep);
  v("dispatch", c.dispatch);
  integer("chunks", c.chunks, between(1, kMaxSize));
  integer("zero", c.zero, between(0, 3));
  integer("shard_group", c.shard_group, between(0, kMaxSize));
  v("sequence_parallel", c.sequence_parallel);
  v("schedule", c.schedule);
  v("split", c.split);
  v("recompute", c.recompute);
  integer("recompute_every", c.recompute_every, between(1, kMaxSize));
}

void describe(auto& v, ObjectiveConfig& c) {
  v("kind", c.kind);
  v("beta", c.beta, above(0));
  v("label_smoothing", c.label_smoothing, between(0, 0.5));
  v("class_weights", c.class_weights, between(0, 1e6));
}

void describe(auto& v, AdapterConfig& c) {
  v("kind", c.kind);
  v("r", c.r, between(1, 1 << 16));
  v("alpha", c.alpha, above(0));
  v("dropout", c.dropout, kFraction);
  v("rslora", c.rslora);
  v("targets", c.targets);
  v("train", c.train);
  v("init", c.init);
}

// The section `objective`: its keys, or one word, its kind.
struct ObjectiveSection {
  ObjectiveConfig& objective;
};

// The section `model`, whose keys are described in model/.
struct ModelSection {
  ModelConfig& model;
  std::string& preset;
  std::string& config;
  std::string& init;
  NewTokens& new_tokens;
  bool& allow_unused;
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

void describe(auto& v, CommConfig& c) {
  v("reduce", c.reduce);
  v("check", c.check);
  v("deterministic", c.deterministic);
  v("timeout_s", c.timeout_s, above(0));
  v("silence_s", c.silence_s, at_least(0));
  v("allow_sockets", c.allow_sockets);
  v("share_gpu", c.share_gpu);
  v("register_buffers", c.register_buffers);
}

void describe(auto& v, PreflightConfig& c) {
  v("enabled", c.enabled);
  v("links", c.links);
  v("slow", c.slow, between(0, 1));
  v("failed", c.failed, between(0, 1));
  v("timeout_s", c.timeout_s, between(1, 1e6));
  v("exclude_days", c.exclude_days, between(0, 36500));
}

void describe(auto& v, EnergyConfig& c) {
  v("enabled", c.enabled);
  v("sample_s", c.sample_s, between(0.05, 2));
  v("root", c.root);
  v("node_w", c.node_w, between(0, 1e6));
  v("power_limit_w", c.power_limit_w, between(0, 1e5));
  v("gpu_clock_mhz", c.gpu_clock_mhz, between(0, 1e5));
  v("baseline_steps", c.baseline_steps, between(0, 1e6));
  v("machine", c.machine);
  v("pue", c.pue, between(1, 10));
  v("kg_co2_per_kwh", c.kg_co2_per_kwh, between(0, 10));
  v("kg_co2_per_kwh_market", c.kg_co2_per_kwh_market, between(0, 10));
}

void describe(auto& v, OffloadConfig& c) {
  v("optimizer", c.optimizer);
  v("gradients", c.gradients);
  v("activations", c.activations);
  v("update", c.update);
}

void describe(auto& v, GpuConfig& c) {
  v("device", c.device);
  v("deterministic", c.deterministic);
  v("graphs", c.graphs);
  v("tf32", c.tf32);
  v("matmul_cache", c.matmul_cache);
}

void describe(auto& v, StageTraining& c) { describe_training(v, c.train); }

void describe(auto& v, RunTraining& c) { v("save", c.save); }

inline ModelSection model_section(StageConfig& c) {
  return {c.model,      c.model_preset,     c.model_config,
          c.model_init, c.model_new_tokens, c.model_allow_unused,
          c.run.dir};
}

// One stage of `stages`. All other keys are those of the whole run.
void describe_stage(auto& v, StageConfig& c) {
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
void describe_common(auto& v, RunConfig& c) {
  v("run", c.run);
  v("model", model_section(c));
  RunTraining train{c.train.save};
  v("train", train);
  v("comm", c.comm);
  v("preflight", c.preflight);
  v("energy", c.energy);
  v("objective", ObjectiveSection{c.objective});
  v("adapter", c.adapter);
  v("freeze", c.freeze);
  v("device", c.device);
  v("gpu", c.gpu);
  v("threads", c.threads, between(0, 1024));
  v("stages", StageList{c});
}

void describe(auto& v, RunConfig& c) {
  v("run", c.run);
  v("model", model_section(c));
  v("data", c.data);
  BatchSection batch{c.batch.global, c.layout.micro_batch, c.batch.ramp};
  v("batch", batch);
  v("optimizer", c.optimizer);
  v("train", c.train);
  v("layout", LayoutSection{c.layout, c.layout_auto});
  v("comm", c.comm);
  v("preflight", c.preflight);
  v("energy", c.energy);
  v("offload", c.offload);
  v("objective", ObjectiveSection{c.objective});
  v("adapter", c.adapter);
  v("freeze", c.freeze);
  v("device", c.device);
  v("gpu", c.gpu);
  v("threads", c.threads, between(0, 1024));
  v("stages", StageList{c});  // the last one: the keys before it are its defaults
}

}  // namespace kintsugi
