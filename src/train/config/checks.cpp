#include "train/config/checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <string_view>

#include "core/error.h"
#include "data/sampling/megatron_order.h"
#include "data/sampling/packing_index.h"
#include "http/http_post.h"
#include "model/families/family.h"
#include "model/fp8.h"
#include "model/lora.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostSamples = 64;
constexpr std::array<std::string_view, 8> kEvents = {
    "finished", "failed", "stopped", "diverged", "spike", "stalled", "resumed", "checkpoint"};

// Error messages are in the logs of jobs, which others may read.
std::string without_secret(std::string text, const std::string& secret) {
  for (std::size_t at = 0; !secret.empty() && (at = text.find(secret, at)) != text.npos;)
    text.replace(at, secret.size(), "ADDRESS");
  return text;
}

class ConfigChecks {
 public:
  // `prefix` is that of the keys of a stage, "stages[1].".
  ConfigChecks(const YamlDocument& document, const std::string& prefix, const StageConfig& config)
      : document_(document), prefix_(prefix), config_(config) {}

  void run() const {
    check_start();
    check_data();
    check_sources(config_.data.train, "data.train");
    check_sources(config_.data.valid, "data.valid");
    check_weights();
    check_classification();
    check_examples();
    check_order();
    check_batch();
    check_ramp();
    check_length();
    check_optimizer();
    check_loss_scale();
    check_fp8();
    check_balance();
    check_average();
    check_spikes();
    check_samples();
    check_notify();
    check_preference();
    check_layout();
    check_offload();
    check_trained_parameters();
  }

 private:
  template <class... Args>
  [[noreturn]] void complain(const char* key, fmt::format_string<Args...> format,
                             Args&&... args) const {
    user_error("{}: {}{} {}", where(key), prefix_, key,
               fmt::format(format, std::forward<Args>(args)...));
  }

  // A key of a stage is set in the stage, there with or without its section, or at the top level.
  // Empty if it is not set.
  std::string key_as_set(const std::string& key) const {
    if (!prefix_.empty())
      for (const std::string& own : {prefix_ + key, prefix_ + key.substr(key.rfind('.') + 1)})
        if (document_.has(own)) return own;
    return document_.has(key) ? key : "";
  }
  bool given(const std::string& key) const { return !key_as_set(key).empty(); }

  std::string where(const std::string& key) const {
    if (const std::string own = key_as_set(key); !own.empty()) return document_.where(own);
    return document_.where(prefix_.empty() ? key : prefix_.substr(0, prefix_.size() - 1));
  }

  void check_start() const {
    if (config_.run.from && !config_.model_init.empty())
      complain("run.from",
               "continues a checkpoint, and model.init starts from other weights: remove one of "
               "them");
  }

  void check_classification() const {
    const ObjectiveConfig& objective = config_.objective;
    const bool classifies = objective.kind == ObjectiveKind::Classification;
    const NumbersOrWord& weights = objective.class_weights;
    if (!classifies && weights.given())
      complain("objective.class_weights",
               "is only for objective classification: remove it, or set objective.kind");
    if (!weights.word.empty() && weights.word != "balanced")
      complain("objective.class_weights",
               "is '{}': give a list with one number per label, or the word balanced",
               weights.word);
    if (!classifies && config_.model.is_classifier())
      complain("objective.kind",
               "is {}, but the model is a classifier with {} labels: set it to classification, or "
               "start from a language model",
               to_string(objective.kind), config_.model.labels.size());
    if (!classifies) return;
    if (family_info(config_.model.family).classifier == nullptr)
      complain("objective.kind", "is classification, but model family {} has no classifier",
               to_string(config_.model.family));
    if (config_.adapter.kind != AdapterKind::None)
      complain("adapter.kind",
               "is lora, but an adapter has no place for the labels of objective classification: "
               "train the whole model, or parts of it with freeze");
    if (!config_.train.eval_tasks.empty())
      complain("train.eval_tasks",
               "needs a language model, and objective classification trains a classifier: remove "
               "it; validation sets give accuracy and F1");
  }

  void check_trained_parameters() const {
    if (config_.adapter.kind == AdapterKind::None && config_.adapter != AdapterConfig{})
      complain("adapter.kind", "is none, so the other keys of adapter do nothing: set it to lora");
    if (config_.freeze.empty() && !config_.model.lora.on()) return;
    const char* const key = config_.freeze.empty() ? "adapter" : "freeze";
    // A classifier gets its labels, and so its head, from the data: resolve_tokenizer() checks it.
    if (config_.objective.kind != ObjectiveKind::Classification) {
      try {
        check_trained(config_.model);
      } catch (const UserError& error) {
        user_error("{}: {}", where(key), error.what());
      }
    }
    if (config_.model.lora.on() && config_.optimizer.kind == OptimizerKind::Muon)
      complain("optimizer.kind", "is muon, which is for whole matrices: adapters need adamw");
  }

  void check_data() const {
    const DataConfig& data = config_.data;
    if (data.train.empty())
      complain("data.train",
               "is empty: give at least one source, for example [{{path: corpus.txt}}]");
    if (config_.model_new_tokens != NewTokens::Mean && config_.model_init.empty())
      complain("model.new_tokens", "is only for model.init: remove it, or give the weights there");
    if (config_.model_allow_unused && config_.model_init.empty())
      complain("model.allow_unused_weights",
               "is only for model.init: remove it, or give the weights there");
    const ModelConfig& model = config_.model;
    if (model.positions() == PositionKind::Learned && data.sequence_length > model.max_positions)
      complain("data.sequence_length",
               "is {}, but the model has only {} learned positions: lower it or raise "
               "model.max_positions",
               data.sequence_length, model.max_positions);
    if (data.document_mask && !family_info(model.family).document_masks)
      complain("data.document_mask",
               "is set, but model family {} does not support document masks: remove it",
               to_string(model.family));
  }

  template <class Source>
  void check_sources(const std::vector<Source>& sources, const char* key) const {
    std::set<std::string> names;
    for (const Source& source : sources) {
      if (source.path.empty()) complain(key, "has an item without a path: add one");
      if (!names.insert(source.name).second)
        complain(key, "has two items named {}: give each its own name, as {{path: {}, name: …}}",
                 source.name, source.path);
    }
  }

  // The sampling weights come from one of: weights, tokens, or a temperature over the source sizes.
  void check_weights() const {
    const DataConfig& data = config_.data;
    const bool targets = data.train.front().tokens > 0;
    for (const DataSource& source : data.train) {
      if (data.temperature > 0 && (source.weight.value_or(1) != 1 || source.tokens > 0))
        complain("data.temperature",
                 "computes the weights from the sizes of the sources, but {} has {} of its own: "
                 "remove one of them",
                 source.name, source.tokens > 0 ? "tokens" : "a weight");
      if (targets != (source.tokens > 0) || (targets && source.weight.value_or(1) != 1))
        complain("data.train",
                 "mixes weights and tokens (see {}): give every source a weight, or every source "
                 "tokens",
                 source.name);
    }
  }

  void check_examples() const {
    if (!config_.on_examples()) return;
    const DataConfig& data = config_.data;
    const auto objective = to_string(config_.objective.kind);
    if (!data.packed())
      complain("data.packing",
               "is windows, which cut the examples of objective {}: use best_fit or single",
               objective);
    if (data.boundary_loss)
      complain("data.boundary_loss",
               "is true, but with objective {} no example predicts the next one: remove it",
               objective);
    if (data.document_mask) return;
    if (config_.objective.kind == ObjectiveKind::Dpo)
      complain("data.document_mask",
               "is false, but both answers of a pair are in one sample and must not see each "
               "other: remove it{}",
               family_info(config_.model.family).document_masks
                   ? ""
                   : ", and use a model family that supports document masks");
    if (data.packing == Packing::BestFit)
      complain("data.document_mask",
               "is false, but packed examples must not see each other: remove it, or set "
               "data.packing to single");
  }

  void check_order() const {
    const DataConfig& data = config_.data;
    try {
      parse_megatron_split(data.split);
    } catch (const UserError& error) {
      user_error("{}: {}data.split: {}", where("data.split"), prefix_, error.what());
    }
    if (data.packed() && data.sequence_length > kMaxPackedLength)
      complain("data.packing", "packs samples of at most {} tokens: use shorter ones, or windows",
               kMaxPackedLength);
    if (!data.megatron()) return;
    if (data.packed())
      complain("data.packing",
               "is {}, but order megatron reads windows: remove data.packing or data.order",
               data.packing == Packing::Single ? "single" : "best_fit");
    for (const DataSource& source : data.train)
      if (source.max_epochs > 0 || data.max_epochs > 0)
        complain("data.order", "is megatron, which does not support max_epochs: remove it");
    if (config_.data_seed() > std::numeric_limits<std::uint32_t>::max())
      complain(config_.data.seed ? "data.seed" : "run.seed",
               "is {}, but Megatron's random generator takes 32 bits: use a smaller one",
               config_.data_seed());
  }

  void check_batch() const { check_multiple_of_micro("batch.global", config_.batch.global); }

  void check_multiple_of_micro(const char* key, std::int64_t batch) const {
    const std::int64_t micro = config_.layout.micro_batch, below = batch / micro * micro;
    if (batch == below) return;
    complain(key, "is {}, which is not a multiple of batch.micro {}: use {}", batch, micro,
             below == 0 ? fmt::format("{}", micro) : fmt::format("{} or {}", below, below + micro));
  }

  void check_ramp() const {
    const std::int64_t global = config_.batch.global;
    const BatchRamp& ramp = config_.batch.ramp;
    if (!ramp.on()) {
      if (ramp.increment > 0 || ramp.samples > 0)
        complain("batch.ramp",
                 "has no start: set it to the sequences of the first step, or remove it");
      return;
    }
    check_multiple_of_micro("batch.ramp.start", ramp.start);
    if (ramp.start > global)
      complain("batch.ramp.start", "is {}, above batch.global {}: lower it", ramp.start, global);
    if (ramp.start == global)
      complain("batch.ramp.start",
               "is {}, which is batch.global, so nothing grows: lower it, or remove batch.ramp",
               ramp.start);
    if (ramp.increment == 0)
      complain("batch.ramp", "has no increment: set it to the sequences by which the batch grows");
    check_multiple_of_micro("batch.ramp.increment", ramp.increment);
    if (const std::int64_t beyond = (global - ramp.start) % ramp.increment; beyond != 0)
      complain("batch.ramp.increment",
               "is {}, which does not divide the {} sequences from batch.ramp.start {} to "
               "batch.global {}: change it, or use batch.global {} or {}",
               ramp.increment, global - ramp.start, ramp.start, global, global - beyond,
               global - beyond + ramp.increment);
    if ((global - ramp.start) / ramp.increment > kMaxRampIncrements)
      complain("batch.ramp.increment", "is {}, which makes {} increments, more than {}: raise it",
               ramp.increment, (global - ramp.start) / ramp.increment, kMaxRampIncrements);
    if (ramp.samples == 0)
      complain("batch.ramp",
               "has no samples: set it to the samples after which the batch is batch.global");
  }

  void check_length() const {
    const TrainConfig& train = config_.train;
    if (train.steps == 0 && train.tokens == 0 && !prefix_.empty())
      user_error("{}: {} has no length: give steps or tokens", where("train.steps"),
                 prefix_.substr(0, prefix_.size() - 1));
    if (train.steps == 0 && train.tokens == 0)
      complain("train.steps",
               "is 0 and so is train.tokens: set one of them, or the run has no end");
  }

  void check_balance() const {
    const auto& experts = config_.model.experts;
    const bool some = experts && std::ssize(experts->dense_layers) < config_.model.layers;
    if (!some && config_.train.balance != TrainConfig().balance)
      complain("train.balance", "is for experts, and the model has none: remove it");
    if (!config_.model.experts || config_.train.balance.bias_speed == 0) return;
    if (!family_info(config_.model.family).bias)
      complain("train.balance.bias_speed",
               "is {}, but the routers of family {} have no bias: remove it",
               config_.train.balance.bias_speed, to_string(config_.model.family));
    if (config_.model.lora.on())
      complain("train.balance.bias_speed",
               "is {}, but a checkpoint of adapters has no biases of routers: remove it",
               config_.train.balance.bias_speed);
  }

  void check_fp8() const {
    const Fp8Config& fp8 = config_.train.fp8;
    if (!fp8.on() && fp8 != Fp8Config{})
      complain("train.fp8.recipe",
               "is none, so the other keys of train.fp8 do nothing: set it to rowwise");
    if (!fp8.on()) return;
    if (config_.train.precision != DType::BF16 && config_.train.precision != DType::F32)
      complain("train.precision", "is {}, but train.fp8 needs bf16 (or fp32, to compare)",
               to_string(config_.train.precision));
    const std::int64_t length = config_.data.sequence_length,
                       multiple = kFp8Multiple * config_.layout.cp;
    if (!fits_fp8(length, config_.layout.cp))
      complain("data.sequence_length", "is {}, but train.fp8 needs a multiple of {}{}: use {}",
               length, multiple,
               config_.layout.cp > 1 ? fmt::format(" ({} tokens on each of {} context ranks)",
                                                   kFp8Multiple, config_.layout.cp)
                                     : "",
               (length + multiple - 1) / multiple * multiple);
    try {
      kintsugi::check_fp8(config_.model);
    } catch (const UserError& error) {
      user_error("{}: {}", where("train.fp8.filter"), error.what());
    }
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
    const MuonConfig& muon = optimizer.muon;
    if (optimizer.kind != OptimizerKind::Muon && muon != MuonConfig{})
      complain("optimizer.muon",
               "is given, but optimizer.kind is adamw: set it to muon, or remove this");
    if (muon.precision != DType::F32 && muon.precision != DType::BF16)
      complain("optimizer.muon.precision", "is {}: Muon iterates in bf16 or fp32",
               to_string(muon.precision));
    const SkipStepOptions& skip = optimizer.skip_step;
    if (skip.deviations == 0 && skip != SkipStepOptions{})
      complain("optimizer.skip_step.window",
               "is {}, but without optimizer.skip_step.deviations no step is skipped: set them, or "
               "remove this",
               skip.window);
    if (optimizer.decay_steps == 0) return;
    if (optimizer.schedule != ScheduleKind::Wsd)
      complain("optimizer.decay_steps",
               "is {}, but schedule {} has no decay phase: remove it or use wsd",
               optimizer.decay_steps, to_string(optimizer.schedule));
    if (optimizer.warmup_steps + optimizer.decay_steps > steps)
      complain("optimizer.decay_steps",
               "is {}, which with {} warm-up steps is more than the run's {} steps: use fewer",
               optimizer.decay_steps, optimizer.warmup_steps, steps);
  }

  void check_loss_scale() const {
    const LossScaleOptions& scale = config_.train.loss_scale;
    if (scale.initial < scale.minimum)
      complain("train.loss_scale.initial", "is {}, below train.loss_scale.minimum {}: raise it",
               scale.initial, scale.minimum);
  }

  void check_spikes() const {
    const SpikeOptions& spikes = config_.train.spikes;
    if (spikes.action == SpikeAction::None && spikes != SpikeOptions{})
      complain("train.spikes",
               "has settings, but train.spikes.action is none: set it to warn, rewind or stop, or "
               "remove them");
    if (spikes.action != SpikeAction::Rewind) return;
    const std::int64_t every = config_.train.checkpoint_every.value_or(0),
                       keep = config_.train.keep_checkpoints;
    if (!config_.train.save || every == 0)
      complain(
          "train.spikes.action",
          "is rewind, which needs checkpoints: set train.checkpoint_every to a number of steps, "
          "and train.save");
    const std::int64_t needed = (spikes.rewind_steps + every - 1) / every + 1;
    if (keep > 0 && keep < needed)
      complain("train.spikes.rewind_steps",
               "is {}, but train.keep_checkpoints {} with train.checkpoint_every {} may keep none "
               "that is so old: keep {}",
               spikes.rewind_steps, keep, every, needed);
    bool limited = config_.data.max_epochs > 0 || config_.data.megatron();
    for (const DataSource& source : config_.data.train) limited |= source.max_epochs > 0;
    if (limited)
      complain("train.spikes.action",
               "is rewind, which reads further than planned: not with data.order megatron or "
               "max_epochs");
  }

  void check_samples() const {
    const SamplesConfig& samples = config_.train.samples;
    const bool chosen = given("train.samples.prompts");  // an empty list turns them off
    if (!chosen && samples.prompts.empty() && samples != SamplesConfig{})
      complain("train.samples.tokens", "does nothing without train.samples.prompts: give some");
    if (samples.prompts.size() > kMostSamples)
      complain("train.samples.prompts", "has {} prompts: give at most {}", samples.prompts.size(),
               kMostSamples);
    if (!samples.prompts.empty() && config_.objective.kind == ObjectiveKind::Classification)
      complain("train.samples.prompts",
               "needs a language model, and objective classification trains a classifier: remove "
               "it");
  }

  void check_notify() const {
    const NotifyConfig& notify = config_.run.notify;
    for (const std::string& event : notify.on)
      if (std::ranges::find(kEvents, event) == kEvents.end())
        complain("run.notify.on", "has '{}': the events are {}", event, fmt::join(kEvents, ", "));
    if (!notify.command && !notify.webhook && notify.on != NotifyConfig{}.on)
      complain("run.notify.on", "does nothing without run.notify.command or run.notify.webhook");
    if (notify.command && notify.command->empty())
      complain("run.notify.command", "is empty: give a command, or remove it");
    if (!notify.webhook) return;
    try {
      parse_http_address(*notify.webhook);
    } catch (const UserError& error) {
      complain("run.notify.webhook", "{}", without_secret(error.what(), *notify.webhook));
    }
  }

  void check_preference() const {
    const ObjectiveConfig& objective = config_.objective;
    if (objective.kind != ObjectiveKind::Dpo) {
      if (objective.beta != ObjectiveConfig{}.beta)
        complain("objective.beta", "is for objective dpo, not for {}: remove it",
                 to_string(objective.kind));
      if (objective.label_smoothing > 0)
        complain("objective.label_smoothing", "is for objective dpo, not for {}: remove it",
                 to_string(objective.kind));
      return;
    }
    if (config_.train.z_loss > 0)
      complain("train.z_loss", "is not a part of objective dpo: remove it");
    if (config_.adapter.init)
      complain("adapter.init",
               "gives adapters that the reference model of objective dpo does not have: merge them "
               "with `kintsugi model merge-adapter` and start from the merged model");
  }

  void check_average() const {
    const EmaOptions& ema = config_.train.ema;
    if (!ema.on() && ema != EmaOptions{})
      complain("train.ema.every",
               "is {}, but without train.ema.decay there is no average: set it, or remove this",
               ema.every);
  }

  // Checks that depend on the number of ranks come later, in fit_layout.
  void check_layout() const {
    const Layout& layout = config_.layout;
    if (layout.recompute_every > 1 && layout.recompute == Recompute::None)
      complain("layout.recompute_every",
               "is {}, but layout.recompute is none: set it to selective or full, or remove this",
               layout.recompute_every);
    if (layout.shard_group > 0 && layout.zero == 0)
      complain("layout.shard_group",
               "is {}, but layout.zero 0 shards nothing: set zero to 1, 2 or 3, or remove it",
               layout.shard_group);
    const DType reduce = config_.comm.reduce;
    if (reduce != DType::F32 && reduce != DType::BF16)
      complain("comm.reduce", "is {}: gradients are reduced in fp32 or bf16", to_string(reduce));
    if (reduce == DType::BF16 && config_.train.precision == DType::F64)
      complain("comm.reduce", "is bf16, but an fp64 run sums in fp64: remove it");
  }

  void check_offload() const {
    const OffloadConfig& offload = config_.offload;
    if (!offload.optimizer && offload.update != UpdateLocation::Auto)
      complain("offload.update",
               "is {}, but the optimizer's state is on the device: set offload.optimizer to true "
               "or remove this",
               to_string(offload.update));
    if (offload.gradients && config_.layout.pp > 1 &&
        config_.layout.schedule == PipelineKind::ZeroBubbleH1)
      complain("offload.gradients",
               "moves a layer's gradients to the host after its backward, but with "
               "layout.schedule zb-h1 they are complete only at the end of a step: use another "
               "schedule or remove this");
    if (offload.activations && config_.layout.recompute != Recompute::Full)
      complain("offload.activations",
               "moves the inputs of blocks that are recomputed in full, but layout.recompute is "
               "{}: set it to full or remove this",
               to_string(config_.layout.recompute));
    const std::int64_t chunks = std::int64_t{config_.layout.pp} * config_.layout.chunks;
    if (offload.activations && config_.model.layers <= 2 * chunks)
      complain("offload.activations",
               "keeps the first and the last block input of each pipeline chunk on the device, and "
               "{} layers in {} chunk{} have no others: remove it",
               config_.model.layers, chunks, chunks == 1 ? "" : "s");
  }

  const YamlDocument& document_;
  const std::string& prefix_;
  const StageConfig& config_;
};

}  // namespace

void check_run_config(const YamlDocument& document, const std::string& prefix,
                      const StageConfig& config) {
  ConfigChecks(document, prefix, config).run();
}

}  // namespace kintsugi
