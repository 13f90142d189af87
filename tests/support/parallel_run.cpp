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

constexpr std::int64_t kLength = 7;
constexpr std::int32_t kVocabulary = 23;

struct Batch {
  std::vector<std::int32_t> ids, targets, positions, starts;
};

// Any part of a step's batch, from its own random numbers by sequence.
Batch make_batch(const Training& training, std::int64_t step, std::int64_t first,
                 std::int64_t count) {
  Batch batch;
  for (std::int64_t sequence = first; sequence < first + count; ++sequence) {
    std::mt19937 random(static_cast<std::uint32_t>(step * 1000 + sequence));
    // The first sequence has no target, the next ones few: ranks count very different numbers.
    const std::uint32_t few = training.sequences == 1             ? 4
                              : sequence == 0                     ? 0
                              : 2 * sequence < training.sequences ? 2
                                                                  : 7;
    const std::uint32_t kept = training.masked ? few : 8;
    std::int32_t start = 0;
    for (std::int32_t at = 0; at < kLength; ++at) {
      if (training.documents && random() % 3 == 0) start = at;
      batch.ids.push_back(static_cast<std::int32_t>(random() % kVocabulary));
      const auto target = static_cast<std::int32_t>(random() % kVocabulary);
      batch.targets.push_back(random() % 8 < kept ? target : -1);
      batch.positions.push_back(at - start);
      batch.starts.push_back(start);
    }
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

// Ranks report here, from their threads.
std::mutex reporting;

void expect_equal(double a, double b, const char* what) {
  const std::lock_guard lock(reporting);
  EXPECT_EQ(a, b) << "two ranks do not have the same " << what;
}

}  // namespace

std::string to_string(const DataLayout& layout) {
  return fmt::format(
      "{} ranks, ZeRO {}{}", layout.ranks, layout.zero,
      layout.shard_group == 0 ? "" : fmt::format(" in groups of {}", layout.shard_group));
}

const std::vector<std::string>& tiny_models() {
  static const std::vector<std::string> kinds = {"gpt2",  "llama-tied", "llama-untied", "llama-gqa",
                                                 "qwen3", "bloom",      "bloom-untied"};
  return kinds;
}

ModelConfig tiny_model(const std::string& kind, std::int64_t layers) {
  ModelConfig config;
  config.family = parse_family(kind.substr(0, kind.find('-')));
  config.vocab_size = kVocabulary;
  config.hidden_size = 12;
  config.layers = layers;
  config.heads = 2;
  if (kind == "llama-gqa" || kind == "qwen3") config.kv_heads = 1;
  if (config.family != Family::Bloom) config.ffn_size = 20;
  config.max_positions = 16;
  config.tied = kind != "llama-gqa" && !kind.ends_with("untied");
  config.init_std = 0.1;
  config.complete_and_check();
  return config;
}

EngineOptions Training::engine(int zero) const {
  return {.model = model,
          .precision = precision,
          .stage = {.sequences = micro, .length = kLength, .recompute = recompute},
          .adamw = adamw,
          .documents = documents,
          .zero = zero,
          .reduce_in_bf16 = reduce_in_bf16};
}

std::int64_t Member::share() const {
  const std::int64_t each = training.sequences / layout.ranks;
  KINTSUGI_CHECK(each * layout.ranks == training.sequences, "{} sequences on {} ranks",
                 training.sequences, layout.ranks);
  return each;
}

template <class F>
auto Member::on_batch(std::int64_t step, const F& use) const {
  const Batch batch = make_batch(training, step, share() * world.rank(), share());
  return training.documents
             ? use(TokenBatch{batch.ids, batch.targets, batch.positions, batch.starts})
             : use(TokenBatch{batch.ids, batch.targets});
}

StepResult Member::step(std::int64_t step, double loss_scale) const {
  return on_batch(step, [&](const TokenBatch& tokens) {
    return engine.step(tokens, {.step = step,
                                .lr = training.lr,
                                .loss_scale = loss_scale,
                                .dropout = training.dropout,
                                .seed = 3,
                                .first_sequence = share() * world.rank()});
  });
}

double Member::evaluate(std::int64_t step) const {
  return on_batch(step, [&](const TokenBatch& tokens) { return engine.evaluate(tokens); });
}

void on_ranks(const DataLayout& layout, const Training& training, const MemberFunction& function,
              bool initialize, const WrapWorld& wrap) {
  run_ranks(layout.ranks, [&](World& plain) {
    World& world = wrap ? wrap(plain) : plain;
    const Groups groups = make_groups(world, {.dp = layout.ranks, .shard_group = layout.shard()});
    const DataGroups data{groups.shard.get(), groups.replica.get(), groups.data.get()};
    const auto backend = make_cpu_backend(1);
    Engine engine(*backend, *backend, training.engine(layout.zero), data);
    initialize ? engine.initialize(11) : engine.prepare();
    function({world, data, engine, layout, training});
  });
}

void train(const Member& member, std::int64_t first, std::int64_t last, Outcome& outcome) {
  Communicator& host = *member.groups.host;
  const bool speaks = host.rank() == 0;
  for (std::int64_t step = first; step <= last; ++step) {
    const StepResult result = member.step(step);
    if (speaks) {
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.gradient_norm);
    }
    host.barrier();
    expect_equal(result.loss, outcome.losses.back(), "loss");
    expect_equal(result.gradient_norm, outcome.norms.back(), "gradient norm");
    host.barrier();
  }
  Sharding& sharding = member.engine.sharding();
  sharding.finish_weights();
  if (speaks)
    outcome.weights.assign(static_cast<std::size_t>(sharding.set().buffer_elements()), NAN);
  for (int turn = 0; turn < host.size(); ++turn) {
    host.barrier();
    if (turn != host.rank()) continue;
    for (int bucket = 0; bucket < static_cast<int>(sharding.set().buckets().size()); ++bucket) {
      const Sharding::Range range = sharding.stored_weights(bucket);
      const auto held = download(member.engine.backend(), sharding.weights_at(bucket, range));
      for (std::size_t i = 0; i < held.size(); ++i) {
        double& weight = outcome.weights[static_cast<std::size_t>(range.begin) + i];
        if (std::isnan(weight)) weight = held[i];
        if (weight != held[i]) expect_equal(weight, held[i], "weight");
      }
    }
  }
  host.barrier();
}

Outcome trained(const DataLayout& layout, const Training& training, std::int64_t steps) {
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

void expect_same(const Outcome& actual, const Outcome& expected, DType precision,
                 const std::string& what) {
  const bool exact = precision == DType::F64;
  EXPECT_LE(difference(actual.losses, expected.losses), exact ? 1e-10 : 2e-5) << what;
  if (exact) {
    EXPECT_LE(difference(actual.norms, expected.norms), 1e-10) << what;
    EXPECT_LE(difference(actual.weights, expected.weights), 1e-8) << what;
  } else {
    // Later norms are those of other weights: one process in passes of another size is up to 5e-4
    // off, too.
    EXPECT_NEAR(actual.norms[0] / expected.norms[0], 1.0, 1e-6) << what;
  }
}

}  // namespace kintsugi
