#include "support/parallel_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "comm/exchange.h"
#include "comm/grid.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

constexpr std::int32_t kVocabulary = 23;

struct Batch {
  std::vector<std::int32_t> ids, targets, positions, starts;
  std::vector<float> weights = {};
  std::vector<TokenSequence> sequences = {};
};

// Turns rows of single tokens into rows with up to two pairs of sequences of two to four tokens;
// the rest has no target. The first token of each is its prompt. Some rows have no pair.
void add_pairs(const Training& training, std::int64_t row, std::mt19937& random, Batch& batch) {
  const auto begin_of_row = batch.ids.size() - static_cast<std::size_t>(training.length);
  std::int64_t at = 0;
  const auto take = [&](std::int64_t tokens) {
    TokenSequence sequence{.row = row, .begin = at, .end = at + tokens};
    for (std::int64_t i = 0; i < tokens; ++i, ++at) {
      const std::size_t token = begin_of_row + static_cast<std::size_t>(at);
      batch.starts[token] = static_cast<std::int32_t>(sequence.begin);
      batch.positions[token] = static_cast<std::int32_t>(i);
      if (i > 0 || tokens == 2) continue;
      batch.targets[token] = -1;
    }
    batch.targets[begin_of_row + static_cast<std::size_t>(at) - 1] = -1;
    sequence.reference = -2.0 - static_cast<double>(random() % 100) / 20;
    batch.sequences.push_back(sequence);
  };
  for (auto pairs = random() % 3; pairs > 0 && at + 8 <= training.length; --pairs) {
    take(2 + static_cast<std::int64_t>(random() % 3));
    take(2 + static_cast<std::int64_t>(random() % 3));
  }
  for (; at < training.length; ++at)
    batch.targets[begin_of_row + static_cast<std::size_t>(at)] = -1;
}

// Sequences [first, first + count) of a step's batch. Each sequence has its own random numbers.
Batch make_batch(const Training& training, std::int64_t step, std::int64_t first,
                 std::int64_t count) {
  Batch batch;
  const auto labels = static_cast<std::uint32_t>(training.model.labels.size());
  const std::uint32_t classes = labels > 0 ? labels : kVocabulary;
  for (std::int64_t sequence = first; sequence < first + count; ++sequence) {
    std::mt19937 random(static_cast<std::uint32_t>(step * 1000 + sequence));
    // The first sequence has no target, the next ones few: ranks have very different token counts.
    const std::uint32_t few = training.sequences == 1             ? 4
                              : sequence == 0                     ? 0
                              : 2 * sequence < training.sequences ? 2
                                                                  : 7;
    const std::uint32_t kept = training.masked ? few : 8;
    std::int32_t start = 0;
    for (std::int32_t at = 0; at < training.length; ++at) {
      if (training.has_documents() && !training.preference && random() % 3 == 0) start = at;
      batch.ids.push_back(static_cast<std::int32_t>(random() % kVocabulary));
      const auto target = static_cast<std::int32_t>(random() % classes);
      batch.targets.push_back(random() % 8 < kept ? target : -1);
      batch.positions.push_back(at - start);
      batch.starts.push_back(start);
      if (training.weighted) batch.weights.push_back(static_cast<float>(random() % 5) / 2);
    }
    if (training.preference) add_pairs(training, sequence - first, random, batch);
  }
  return batch;
}

std::vector<double> download(Backend& backend, const Tensor& x) {
  std::vector<double> values;
  visit_float(x.dtype(), [&]<class T>() {
    std::vector<T> stored(static_cast<std::size_t>(x.elements()));
    backend.download(stored.data(), x);
    for (const T value : stored)
      values.push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
  });
  return values;
}

// Protects test assertions, which ranks make from their threads.
std::mutex reporting;

void expect_equal(double a, double b, const char* what) {
  const std::lock_guard lock(reporting);
  EXPECT_EQ(a, b) << "two ranks do not have the same " << what;
}

}  // namespace

std::string to_string(const RankLayout& layout) {
  std::string text = fmt::format("tp {} × cp {} × dp {} × pp {}, ZeRO {}", layout.tp, layout.cp,
                                 layout.dp, layout.pp, layout.zero);
  if (layout.shard_group > 0) text += fmt::format(" in groups of {}", layout.shard_group);
  if (layout.experts > 1)
    text +=
        fmt::format(", experts on {} data ranks by {}", layout.experts, to_string(layout.dispatch));
  if (layout.context != ContextMethod::Ring) text += fmt::format(", {}", to_string(layout.context));
  if (layout.sequence_parallel) text += ", sequence parallel";
  if (layout.pp > 1) text += fmt::format(", {}", to_string(layout.schedule));
  if (layout.chunks > 1) text += fmt::format(" with {} chunks", layout.chunks);
  return text;
}

ModelConfig tiny_fp8_model(const std::string& kind, Fp8Recipe recipe) {
  ModelConfig config = tiny_model(kind, 4);
  config.hidden_size = 64;
  config.head_dim = 0;
  config.ffn_size = config.family == Family::Bloom ? 0 : 96;
  if (config.experts) config.experts->size = config.family == Family::Mixtral ? 0 : 48;
  if (kind == "retnet") config.value_size = 128;
  if (config.latent)
    config.latent = LatentConfig{
        .query_rank = 32, .rank = 48, .plain_dim = 16, .rotary_dim = 16, .value_dim = 16};
  config.fp8.recipe = recipe;
  config.complete_and_check();
  return config;
}

const std::vector<std::string>& tiny_models() {
  static const std::vector<std::string> kinds = {
      "gpt2",  "llama-tied",   "llama-untied", "llama-gqa", "qwen2",      "qwen3",
      "bloom", "bloom-untied", "olmo2",        "olmo3",     "retnet",     "mixtral",
      "olmoe", "qwen3_moe",    "dots1",        "glm4_moe",  "deepseek_v3"};
  return kinds;
}

ModelConfig tiny_model(const std::string& kind, std::int64_t layers, std::int64_t heads) {
  ModelConfig config;
  config.family = parse_family(kind.substr(0, kind.find('-')));
  config.vocab_size = kVocabulary;
  config.hidden_size = heads % 3 == 0 ? 24 : 16;
  config.layers = layers;
  config.heads = heads;
  // A norm over all keys needs more than two numbers to be well conditioned.
  if (kind == "llama-gqa" || kind == "qwen2" || kind == "olmo3" || kind == "mixtral")
    config.kv_heads = heads / 2;
  if (kind == "qwen3") config.kv_heads = 1;
  if (kind == "olmo3") {
    config.sliding_window = 5;
    config.layer_types = {LayerType::Sliding, LayerType::Full};
    if (layers % 2 != 0) config.layer_types = {LayerType::Sliding};
  }
  const bool biased = family_info(config.family).bias;
  if (kind == "mixtral" || kind == "olmoe" || kind == "qwen3_moe" || biased)
    config.experts = ExpertsConfig{.count = heads, .chosen = 2};
  if (kind == "qwen3_moe") {
    config.experts->size = 8;
    config.experts->normalize = false;
    if (layers > 1) config.experts->dense_layers = {1};
  }
  if (biased) {
    config.experts->size = 24;  // of the shared one, too: divides by every tp
    config.experts->shared = 1;
    config.experts->scale = 2.5;
    if (layers > 1) config.experts->dense_layers = {0};
    config.balance.bias_speed = 0.01;
  }
  if (kind == "glm4_moe") {
    config.head_dim = 8;
    config.kv_heads = heads / 2;
    config.qk_norm = true;
  }
  if (kind == "deepseek_v3")
    config.latent =
        LatentConfig{.query_rank = 6, .rank = 8, .plain_dim = 4, .rotary_dim = 2, .value_dim = 3};
  if (kind == "retnet") config.value_size = 3 * config.hidden_size / 2;
  if (config.family != Family::Bloom) config.ffn_size = 24;
  config.max_positions = 32;
  config.tied = kind != "llama-gqa" && !kind.ends_with("untied");
  config.init_std = 0.1;
  // Norms after the sublayers: their inputs are about 1 in wide models, where std is 1 /
  // sqrt(hidden).
  if (kind.starts_with("olmo")) config.init_std = 0.3;
  // If q . k of a token is about 0, the norm after retention keeps only its sign. A larger eps
  // avoids that.
  if (kind == "retnet") config.norm_eps = 1e-2;
  config.complete_and_check();
  return config;
}

Layout Training::layout(const RankLayout& ranks) const {
  return {.tp = ranks.tp,
          .cp = ranks.cp,
          .pp = ranks.pp,
          .context = ranks.context,
          .dp = ranks.dp,
          .chunks = ranks.chunks,
          .schedule = ranks.schedule,
          .split = ranks.split,
          .micro_batch = micro,
          .zero = ranks.zero,
          .shard_group = ranks.shard_group,
          .ep = ranks.experts == 1 ? 0 : ranks.tp * ranks.experts,
          .dispatch = ranks.dispatch,
          .sequence_parallel = ranks.sequence_parallel,
          .recompute = recompute,
          .recompute_every = recompute_every};
}

EngineOptions Training::engine(const RankLayout& ranks) const {
  // The last micro-batch may be smaller than the others.
  const std::int64_t micro_batches = (sequences / ranks.dp + micro - 1) / micro;
  return {.model = model,
          .precision = precision,
          .layout = layout(ranks),
          .batch = ranks.dp * micro_batches * micro,
          .length = length,
          .z_loss = z_loss,
          .preference = preference,
          .skip_step = limited_step > 0,
          .optimizer = optimizer,
          .offload = offload,
          .offload_inputs = offload_inputs,
          .documents = has_documents(),
          .weights = weighted,
          .reduce_in_bf16 = reduce_in_bf16};
}

std::int64_t Member::local_sequences(std::int64_t step) const {
  const auto index = static_cast<std::size_t>(step - 1);
  const std::int64_t sequences =
      index < training.ramp.size() ? training.ramp[index] : training.sequences;
  const std::int64_t each = sequences / layout.dp;
  KINTSUGI_CHECK(each * layout.dp == sequences, "{} sequences on {} data ranks", sequences,
                 layout.dp);
  return each;
}

template <class F>
auto Member::on_batch(std::int64_t step, const F& use) const {
  const Batch batch = make_batch(training, step, local_sequences(step) * groups.coordinates.dp,
                                 local_sequences(step));
  TokenBatch tokens{.ids = batch.ids,
                    .targets = batch.targets,
                    .weights = batch.weights,
                    .sequences = batch.sequences};
  if (training.has_documents()) {
    tokens.positions = batch.positions;
    tokens.document_start = batch.starts;
  }
  return use(tokens);
}

StepResult Member::step(std::int64_t step, double loss_scale) const {
  return on_batch(step, [&](const TokenBatch& tokens) {
    return engine.step(tokens,
                       {.step = step,
                        .lr = training.lr,
                        .loss_scale = loss_scale,
                        .dropout = training.dropout,
                        .seed = 3,
                        .first_sequence = local_sequences(step) * groups.coordinates.dp,
                        .limits = step == training.limited_step ? training.limits : StepLimits{}});
  });
}

double Member::evaluate(std::int64_t step) const {
  return on_batch(step, [&](const TokenBatch& tokens) { return engine.evaluate(tokens).front(); });
}

ConfusionMatrix Member::classify(std::int64_t step) const {
  ConfusionMatrix matrix(training.model.labels.size());
  on_batch(step, [&](const TokenBatch& tokens) {
    return engine.classify(tokens, [&](std::size_t token, std::span<const double> logits) {
      matrix.add(tokens.targets[token], predicted_label(logits));
    });
  });
  Communicator& host = groups[GroupKind::World];
  host.wait(
      host.all_reduce(Tensor(matrix.counts().data(), DType::F64, {std::ssize(matrix.counts())})));
  return matrix;
}

void on_ranks(const RankLayout& layout, const Training& training, const MemberFunction& function,
              bool initialize, const WrapWorld& wrap) {
  run_ranks(layout.ranks(), [&](World& plain) {
    World& world = wrap ? wrap(plain) : plain;
    const Groups groups = make_groups(world, grid_of(training.layout(layout), training.model));
    const auto backend = training.backend(1);
    Engine engine(*backend, *backend, training.engine(layout), groups);
    initialize ? engine.initialize(11) : engine.prepare();
    function({world, groups, engine, layout, training});
  });
}

namespace {

// Copies this rank's weights into the whole model. Copies of an element must be equal.
void collect_weights(const Member& member, const ParameterSet& whole, Outcome& outcome) {
  const Sharding& sharding = member.engine.sharding();
  const ParameterSet& set = sharding.set();
  for (int bucket = 0; bucket < static_cast<int>(set.buckets().size()); ++bucket) {
    const Sharding::Range range = sharding.stored_weights(bucket);
    std::vector<double> stored =
        download(member.engine.backend(), sharding.weights_at(bucket, range));
    if (sharding.is_unrounded(bucket) && sharding.trained(bucket))
      for (double& number : stored) number = static_cast<float>(bf16(static_cast<float>(number)));
    for (const Parameter& parameter : set.parameters()) {
      if (parameter.bucket != bucket) continue;
      const std::int64_t begin = std::max(range.begin, parameter.offset),
                         end = std::min(range.end, parameter.offset + parameter.shape.elements());
      if (begin >= end) continue;
      const std::int64_t start = whole[whole.index(parameter.name)].offset;
      for_each_range(
          parameter.shard, parameter.global, set.tp_rank(), begin - parameter.offset,
          end - parameter.offset, [&](const ShardRange& part) {
            for (std::int64_t i = 0; i < part.count; ++i) {
              const double local =
                  stored[static_cast<std::size_t>(parameter.offset + part.local + i - range.begin)];
              double& global = outcome.weights[static_cast<std::size_t>(start + part.global + i)];
              if (std::isnan(global)) global = local;
              if (global != local) expect_equal(global, local, parameter.name.c_str());
            }
          });
    }
  }
}

}  // namespace

void train(const Member& member, std::int64_t first, std::int64_t last, Outcome& outcome) {
  Communicator& host = member.groups[GroupKind::World];
  const bool is_first = host.rank() == 0;
  for (std::int64_t step = first; step <= last; ++step) {
    const StepResult result = member.step(step);
    if (is_first) {
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.gradient_norm);
      for (const ScalarValue& one : result.scalars) outcome.scalars.push_back(one.value);
      outcome.outliers.push_back(result.outlier);
    }
    host.barrier();
    expect_equal(result.loss, outcome.losses.back(), "loss");
    expect_equal(result.gradient_norm, outcome.norms.back(), "gradient norm");
    host.barrier();
  }
  member.engine.sharding().finish_weights();
  // With fp8 the parameters have another order: this one is the same for all runs of a model.
  ModelConfig model = member.training.model;
  model.fp8 = {};
  const ParameterSet whole(model);
  if (is_first) {
    outcome.weights.assign(static_cast<std::size_t>(whole.buffer_elements()), 0.0);
    for (const Parameter& parameter : whole.parameters())
      std::fill_n(outcome.weights.begin() + parameter.offset, parameter.shape.elements(), NAN);
  }
  for (int turn = 0; turn < host.size(); ++turn) {
    host.barrier();
    if (turn == host.rank()) collect_weights(member, whole, outcome);
  }
  host.barrier();
}

Outcome trained(const RankLayout& layout, const Training& training, std::int64_t steps) {
  Outcome outcome;
  on_ranks(layout, training, [&](const Member& member) { train(member, 1, steps, outcome); });
  return outcome;
}

double difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  if (actual.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double apart = std::abs(actual[i] - expected[i]) / std::max(1.0, std::abs(expected[i]));
    if (!(apart <= largest)) largest = apart;  // a NaN stays
    if (std::isnan(largest)) break;
  }
  return largest;
}

std::string complaint(const Outcome& actual, const Outcome& expected) {
  const auto apart = [&](const char* what, double by, double at_most) {
    return by <= at_most ? "" : fmt::format("{} differ by {:.2g}; ", what, by);
  };
  return apart("losses", difference(actual.losses, expected.losses), 1e-10) +
         apart("scalars", difference(actual.scalars, expected.scalars), 1e-10) +
         apart("norms", difference(actual.norms, expected.norms), 1e-10) +
         apart("weights", difference(actual.weights, expected.weights), 1e-8);
}

void expect_same(const Outcome& actual, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(complaint(actual, expected), "") << what;
}

}  // namespace kintsugi
