// Compares attention of sharded sequences, around a ring and by Ulysses, with attention of whole
// sequences on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/traced_backend.h"
#include "model/layers/ring_attention.h"
#include "model/layers/ulysses_attention.h"
#include "model/shard.h"
#include "support/counting_communicator.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

using Values = std::vector<double>;
using Ids = std::vector<std::int32_t>;

struct ContextCase {
  int ranks = 2;
  std::int64_t sequences = 1, length = 0, heads = 2, kv_heads = 2, dim = 8, value_dim = dim;
  bool alibi = false, documents = false;
  std::int64_t window = 0;
  std::int64_t most_sequences = 0;  // 0: as many as there are
  bool adjacent = true;             // the heads of q, k and v; otherwise as in BLOOM
  ContextMethod method = ContextMethod::Ring;

  std::int64_t tokens() const { return sequences * length; }
  std::int64_t width() const { return (heads + kv_heads) * dim + kv_heads * value_dim; }
  std::int64_t outputs() const { return heads * value_dim; }
};

std::string describe(const ContextCase& c) {
  return fmt::format(
      "{}, {} ranks, {} x {} tokens, heads {}/{} of {} and {}, alibi {}, documents {}, window {}",
      to_string(c.method), c.ranks, c.sequences, c.length, c.heads, c.kv_heads, c.dim, c.value_dim,
      c.alibi, c.documents, c.window);
}

// A tensor in host memory that starts as NaN.
struct Host {
  Host(DType dtype, Shape shape)
      : bytes(static_cast<std::size_t>(shape.elements()) * size_of(dtype), std::byte{0xFF}),
        tensor(bytes.data(), dtype, shape) {}
  Host(Host&&) = default;  // the bytes stay where they are
  double get(std::int64_t i) const {
    return visit_float(tensor.dtype(), [&]<class T>() -> double {
      return static_cast<double>(static_cast<Accumulator<T>>(tensor.as<T>()[i]));
    });
  }
  void set(std::int64_t i, double value) const {
    visit_float(tensor.dtype(), [&]<class T>() {
      tensor.as<T>()[i] = static_cast<T>(static_cast<Accumulator<T>>(value));
    });
  }
  std::vector<std::byte> bytes;
  Tensor tensor;
};

struct Inputs {
  Values qkv, dout;  // (sequences, length, …), rounded to the precision of the run
  Ids starts;
  std::vector<float> slopes;
};

struct Outputs {
  Values out, lse, dqkv;
};

Inputs make_inputs(const ContextCase& c, DType dtype) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::int64_t count) {
    const Host rounded(dtype, {count});
    Values values;
    for (std::int64_t i = 0; i < count; ++i) {
      rounded.set(i, normal(random));
      values.push_back(rounded.get(i));
    }
    return values;
  };
  Inputs x{draw(c.tokens() * c.width()), draw(c.tokens() * c.outputs()), {}, {}};
  for (std::int64_t h = 0; c.alibi && h < c.heads; ++h)
    x.slopes.push_back(0.3f / static_cast<float>(h + 1));
  // Documents that end inside chunks, short and long ones.
  for (std::int64_t s = 0; c.documents && s < c.sequences; ++s)
    for (std::int64_t start = 0, token = 0; token < c.length; ++token) {
      if (token - start == 3 + 7 * ((token + s) % 3)) start = token;
      x.starts.push_back(static_cast<std::int32_t>(start));
    }
  return x;
}

struct Heads {
  Tensor q, k, v;
};
// Splits rows of [q | k | v] or, unless heads are adjacent, q0 k0 v0 q1 k1 v1 …, as in the
// attention layer.
Heads split(const Tensor& rows, const ContextCase& c, std::int64_t length) {
  if (!c.adjacent) {
    const Tensor triples = rows.split_last(3 * c.dim);
    const auto part = [&](std::int64_t i) {
      return triples.part(2, i * c.dim, c.dim).split_first(length);
    };
    return {part(0), part(1), part(2)};
  }
  const std::int64_t q = c.heads * c.dim, k = c.kv_heads * c.dim;
  return {
      rows.part(1, 0, q).split_last(c.dim).split_first(length),
      rows.part(1, q, k).split_last(c.dim).split_first(length),
      rows.part(1, q + k, c.kv_heads * c.value_dim).split_last(c.value_dim).split_first(length)};
}

Values values_of(const Host& host) {
  Values values;
  for (std::int64_t i = 0; i < host.tensor.elements(); ++i) values.push_back(host.get(i));
  return values;
}

Host host_of(const Values& values, Shape shape) {
  Host host(DType::F64, shape);
  for (std::size_t i = 0; i < values.size(); ++i) host.set(static_cast<std::int64_t>(i), values[i]);
  return host;
}

// Attention of whole sequences on one rank in fp64, by the operation that tests/backend checks.
Outputs whole_attention(const ContextCase& c, const Inputs& x, double scale) {
  const auto backend = make_cpu_backend(1);
  const Host qkv = host_of(x.qkv, {c.tokens(), c.width()}), dqkv(DType::F64, qkv.tensor.shape());
  const Host dout = host_of(x.dout, {c.sequences, c.length, c.heads, c.value_dim});
  const Host out(DType::F64, dout.tensor.shape());
  const Host lse(DType::F64, {c.sequences, c.heads, c.length});
  AttentionOptions options{.scale = scale, .window = c.window};
  Inputs copy = x;
  if (c.alibi) options.alibi_slopes = {copy.slopes.data(), DType::F32, {c.heads}};
  if (c.documents)
    options.document_start = {copy.starts.data(), DType::I32, {c.sequences, c.length}};
  const Heads from = split(qkv.tensor, c, c.length), gradient = split(dqkv.tensor, c, c.length);
  backend->attention_forward(out.tensor, lse.tensor, from.q, from.k, from.v, options);
  backend->attention_backward(gradient.q, gradient.k, gradient.v, dout.tensor, out.tensor,
                              lse.tensor, from.q, from.k, from.v, options);
  return {values_of(out), values_of(lse), values_of(dqkv)};
}

// The shard of the problem on one rank.
class LocalProblem {
 public:
  LocalProblem(const ContextCase& c, const Inputs& x, DType dtype, Communicator& group)
      : c_(c),
        shard_{c.ranks, group.rank(), c.length, c.method},
        qkv_(dtype, {c.sequences * local(), c.width()}),
        dqkv_(dtype, qkv_.tensor.shape()),
        out_(dtype, {c.sequences * local(), c.outputs()}),
        dout_(dtype, out_.tensor.shape()),
        lse_(accumulator_of(dtype), {c.sequences, c.heads, local()}),
        slopes_(x.slopes) {
    each_element(c.width(), [&](std::int64_t local, std::int64_t global) {
      qkv_.set(local, x.qkv[static_cast<std::size_t>(global)]);
    });
    each_element(c.outputs(), [&](std::int64_t local, std::int64_t global) {
      dout_.set(local, x.dout[static_cast<std::size_t>(global)]);
    });
    if (!c.documents) return;
    if (c.method == ContextMethod::Ulysses) {
      document_start_ = x.starts;
      return;
    }
    Ids starts(static_cast<std::size_t>(c.sequences * local()));
    each_element(1, [&](std::int64_t local, std::int64_t global) {
      starts[static_cast<std::size_t>(local)] = x.starts[static_cast<std::size_t>(global)];
    });
    document_start_.resize(starts.size() * static_cast<std::size_t>(c.ranks));
    first_visible_keys(document_start_, shard_, starts);
  }

  Tensor slopes() { return c_.alibi ? Tensor(slopes_.data(), DType::F32, {c_.heads}) : Tensor(); }
  ContextAttentionSizes sizes() const {
    return {std::max(c_.sequences, c_.most_sequences),
            local(),
            c_.heads,
            c_.kv_heads,
            c_.dim,
            c_.value_dim};
  }
  void forward(const ContextAttention& attention, double scale) {
    const Heads from = split(qkv_.tensor, c_, local());
    attention.forward(by_sequence(out_), lse_.tensor, from.q, from.k, from.v, scale,
                      document_start(), c_.window);
  }
  void backward(const ContextAttention& attention, double scale) {
    const Heads from = split(qkv_.tensor, c_, local()), gradient = split(dqkv_.tensor, c_, local());
    attention.backward(gradient.q, gradient.k, gradient.v, by_sequence(dout_), by_sequence(out_),
                       lse_.tensor, from.q, from.k, from.v, scale, document_start(), c_.window);
  }
  // Writes the local results into the whole; ranks write different elements.
  void collect(Outputs& whole) const {
    each_element(c_.outputs(), [&](std::int64_t local, std::int64_t global) {
      whole.out[static_cast<std::size_t>(global)] = out_.get(local);
    });
    each_element(c_.width(), [&](std::int64_t local, std::int64_t global) {
      whole.dqkv[static_cast<std::size_t>(global)] = dqkv_.get(local);
    });
    if (c_.method == ContextMethod::Ulysses) return collect_heads(whole);
    for (std::int64_t row = 0; row < c_.sequences * c_.heads; ++row)
      for (std::int64_t i = 0; i < local(); ++i)
        whole.lse[static_cast<std::size_t>(row * c_.length + shard_.position(i))] =
            lse_.get(row * local() + i);
  }
  // The number of queries that see none of another rank's keys, although those precede them.
  std::int64_t blind() const {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < document_start_.size(); ++i) {
      const auto source = static_cast<int>(static_cast<std::int64_t>(i) / (c_.sequences * local()));
      const std::int64_t query = static_cast<std::int64_t>(i) % local();
      if (source < shard_.rank) count += document_start_[i] == local() / 2;
      if (source > shard_.rank && query >= local() / 2) count += document_start_[i] == local();
    }
    return count;
  }

 private:
  std::int64_t local() const { return shard_.local_length(); }
  Tensor by_sequence(const Host& x) const {
    return x.tensor.split_last(c_.value_dim).split_first(local());
  }
  Tensor document_start() {
    if (!c_.documents) return {};
    return c_.method == ContextMethod::Ulysses
               ? Tensor(document_start_.data(), DType::I32, {c_.sequences, c_.length})
               : Tensor(document_start_.data(), DType::I32, {c_.ranks * c_.sequences, local()});
  }
  // The log-sum-exp of this rank's heads.
  void collect_heads(Outputs& whole) const {
    const std::int64_t heads = c_.heads / c_.ranks;
    for (std::int64_t i = 0; i < lse_.tensor.elements(); ++i) {
      const std::int64_t sequence = i / (heads * c_.length), rest = i % (heads * c_.length);
      whole.lse[static_cast<std::size_t>((sequence * c_.heads + shard_.rank * heads) * c_.length +
                                         rest)] = lse_.get(i);
    }
  }
  template <class F>
  void each_element(std::int64_t width, const F& f) const {
    for (std::int64_t s = 0; s < c_.sequences; ++s)
      for (std::int64_t i = 0; i < local(); ++i)
        for (std::int64_t j = 0; j < width; ++j)
          f((s * local() + i) * width + j, (s * c_.length + shard_.position(i)) * width + j);
  }

  ContextCase c_;
  ContextShard shard_;
  Host qkv_, dqkv_, out_, dout_, lse_;
  std::vector<float> slopes_;
  Ids document_start_;
};

std::unique_ptr<ContextAttention> make_attention(Backend& backend, Arena& arena,
                                                 Communicator& group, const ContextCase& c,
                                                 LocalProblem& local, DType dtype) {
  if (c.method == ContextMethod::Ulysses)
    return std::make_unique<UlyssesAttention>(backend, arena, group, local.sizes(), dtype, true,
                                              local.slopes());
  return std::make_unique<RingAttention>(backend, arena, group, local.sizes(), dtype, true,
                                         local.slopes());
}

Outputs sharded_attention(const ContextCase& c, const Inputs& x, DType dtype, double scale) {
  Outputs found;
  found.out.resize(x.dout.size());
  found.dqkv.resize(x.qkv.size());
  found.lse.resize(static_cast<std::size_t>(c.tokens() * c.heads));
  run_ranks(c.ranks, [&](World& world) {
    const auto backend = make_cpu_backend(1);
    const auto group = world.split("cp", 0, world.rank());
    Arena arena(*backend);
    LocalProblem local(c, x, dtype, *group);
    const auto attention = make_attention(*backend, arena, *group, c, local, dtype);
    for (int repeat = 0; repeat < 2; ++repeat) {  // buffers keep old values in the second
      local.forward(*attention, scale);
      local.backward(*attention, scale);
    }
    if (c.documents && c.method == ContextMethod::Ring) {
      EXPECT_GT(local.blind(), 0);
    }
    local.collect(found);
  });
  return found;
}

void expect_near(const char* what, const Values& actual, const Values& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 1, worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  EXPECT_LE(worst / largest, tolerance) << what;
}

// Tolerances relative to the largest number. fp32: scores of about ten lose four bits, sums of a
// hundred terms as many again: 64 roundings. bf16: a partial result is rounded once, and the sum
// again; gradients start from a rounded `out`: 4 roundings.
void check(const ContextCase& c, DType dtype) {
  SCOPED_TRACE(describe(c) + ", " + std::string(to_string(dtype)));
  const double scale = 1.3 / std::sqrt(static_cast<double>(c.dim));
  const Inputs x = make_inputs(c, dtype);
  const Outputs expected = whole_attention(c, x, scale);
  const Outputs found = sharded_attention(c, x, dtype, scale);
  const double tolerance = dtype == DType::F64 ? 1e-12 : 64 * 0x1p-24;
  const double rounded = dtype == DType::BF16 ? 4 * 0x1p-8 : tolerance;
  expect_near("lse", found.lse, expected.lse, tolerance);
  expect_near("out", found.out, expected.out, rounded);
  expect_near("dqkv", found.dqkv, expected.dqkv, rounded);
}

TEST(RingAttention, IsAttentionOfTheWhole) {
  for (const int ranks : {2, 3, 4, 8}) {
    check({.ranks = ranks, .length = 2 * ranks * 3}, DType::F64);
    check({.ranks = ranks, .length = 48 * ranks, .heads = 6, .kv_heads = 2, .dim = 20}, DType::F64);
  }
  check({.ranks = 8, .length = 16, .kv_heads = 1}, DType::F64);  // chunks of one token
  check({.ranks = 4, .length = 32, .dim = 12, .value_dim = 8}, DType::F64);
  check({.ranks = 2, .length = 32, .dim = 8, .value_dim = 20}, DType::F32);
}

TEST(RingAttention, SeveralSequences) {
  check({.ranks = 2, .sequences = 3, .length = 40, .heads = 4}, DType::F64);
  check({.ranks = 4, .sequences = 2, .length = 64, .kv_heads = 1, .most_sequences = 5}, DType::F64);
}

TEST(RingAttention, Alibi) {
  check({.ranks = 3, .sequences = 2, .length = 60, .heads = 4, .alibi = true}, DType::F64);
  check({.ranks = 4, .length = 64, .heads = 4, .kv_heads = 2, .alibi = true}, DType::F64);
}

TEST(RingAttention, Documents) {
  for (const int ranks : {2, 3, 8})
    check({.ranks = ranks, .sequences = 3, .length = 2 * ranks * 10, .documents = true},
          DType::F64);
  check({.ranks = 4,
         .sequences = 2,
         .length = 320,
         .heads = 4,
         .kv_heads = 2,
         .alibi = true,
         .documents = true,
         .most_sequences = 3},
        DType::F64);
}

// Windows of one token, inside a chunk, across several chunks, and longer than the sequence.
TEST(RingAttention, Windows) {
  for (const int ranks : {2, 4})
    for (const std::int64_t window : {1, 2, 9, 10, 11, 25, 40, 79, 1000})
      check({.ranks = ranks, .length = 20 * ranks, .kv_heads = 1, .window = window}, DType::F64);
  for (const int ranks : {2, 3, 4})
    check({.ranks = ranks,
           .sequences = 2,
           .length = 80 * ranks,
           .heads = 4,
           .kv_heads = 2,
           .alibi = true,
           .documents = true,
           .window = 55,
           .most_sequences = 3},
          DType::F64);
  for (const DType dtype : {DType::F32, DType::BF16})
    check({.ranks = 4, .length = 80, .documents = true, .window = 13}, dtype);
}

// A rank computes nothing for keys outside the window of all its queries; it still forwards them.
TEST(RingAttention, ComputesOnlyWhatTheWindowShows) {
  // Chunks of 10 tokens. A window of 11 reaches into the chunk before, which is a neighbour's; the
  // middle chunks are both the last rank's.
  for (const auto& [window, calls] :
       std::vector<std::pair<std::int64_t, std::vector<int>>>{{0, {4, 4, 4, 4}},
                                                              {1, {1, 1, 1, 1}},
                                                              {2, {2, 3, 3, 2}},
                                                              {11, {2, 3, 3, 2}},
                                                              {12, {3, 4, 4, 3}}}) {
    const ContextCase c{.ranks = 4, .length = 80, .window = window};
    const Inputs x = make_inputs(c, DType::F64);
    run_ranks(c.ranks, [&, window = window, calls = calls](World& threads) {
      CountingWorld world(threads);
      Trace trace;
      const auto backend = make_traced_backend(make_cpu_backend(1), trace);
      const auto group = world.split("cp", 0, world.rank());
      Arena arena(*backend);
      LocalProblem local(c, x, DType::F64, *group);
      const RingAttention ring(*backend, arena, *group, local.sizes(), DType::F64, true);
      trace.begin();
      local.forward(ring, 1);
      local.backward(ring, 1);
      trace.end();
      const auto spans = trace.take();
      for (const char* name : {"attention_forward", "attention_backward"})
        EXPECT_EQ(std::count_if(spans.begin(), spans.end(),
                                [&](const TraceSpan& span) { return span.name.starts_with(name); }),
                  calls[static_cast<std::size_t>(world.rank())])
            << name << ", rank " << world.rank() << ", window " << window;
      EXPECT_EQ(world.traffic("cp")[Collective::Send].calls, 9);
    });
  }
}

TEST(RingAttention, OtherPrecisions) {
  for (const DType dtype : {DType::F32, DType::BF16})
    for (const int ranks : {2, 3, 8}) {
      check({.ranks = ranks, .length = 32 * ranks, .heads = 4, .kv_heads = 2, .dim = 16}, dtype);
      check({.ranks = ranks,
             .sequences = 2,
             .length = 2 * ranks * 10,
             .alibi = true,
             .documents = true,
             .most_sequences = 3},
            dtype);
    }
}

// Keys and values go around the ring, except for the last step. In the backward, so do their
// gradients, in accumulator precision.
TEST(RingAttention, SendsNoMoreThanItMust) {
  for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    const ContextCase c{.ranks = 4,
                        .sequences = 2,
                        .length = 48,
                        .heads = 6,
                        .kv_heads = 3,
                        .dim = 8,
                        .most_sequences = 3};
    const Inputs x = make_inputs(c, dtype);
    run_ranks(c.ranks, [&](World& threads) {
      CountingWorld world(threads);
      const auto backend = make_cpu_backend(1);
      const auto group = world.split("cp", 0, world.rank());
      Arena arena(*backend);
      LocalProblem local(c, x, dtype, *group);
      const RingAttention ring(*backend, arena, *group, local.sizes(), dtype, true);
      const Traffic& traffic = world.traffic("cp");
      const double elements = 2.0 * 2 * 12 * 3 * 8;  // keys and values of 2 x 12 tokens
      local.forward(ring, 1);
      EXPECT_EQ(traffic.bytes(), 3 * elements * static_cast<double>(size_of(dtype)));
      EXPECT_EQ(traffic[Collective::Send].calls, 3);
      world.reset();
      local.backward(ring, 1);
      EXPECT_EQ(
          traffic.bytes(),
          3 * elements * static_cast<double>(size_of(dtype) + size_of(accumulator_of(dtype))));
      EXPECT_EQ(traffic[Collective::Send].calls, 6);
    });
  }
}

// Adds a span to the trace where a message is started, and where it is waited for.
class TracedMessages final : public ForwardingCommunicator {
 public:
  TracedMessages(std::unique_ptr<Communicator> inner, Trace& trace)
      : ForwardingCommunicator(std::move(inner)), trace_(trace) {}
  Work start(const Call& call) override {
    const bool gradients = call.whole().dtype() == DType::F32;
    note(fmt::format("{} {}", to_string(call.kind), gradients ? "gradients" : "keys"));
    const Work work = inner_->start(call);
    if (gradients) of_gradients_.insert(work.ticket);
    return work;
  }
  void wait(Work work) override {
    if (work.ticket != 0)
      note(of_gradients_.contains(work.ticket) ? "wait gradients" : "wait keys");
    inner_->wait(work);
  }

 private:
  void note(std::string name) {
    const double now = Trace::now();
    trace_.add(
        {.kind = SpanKind::Communication, .name = std::move(name), .begin_s = now, .end_s = now});
  }
  Trace& trace_;
  std::set<std::int64_t> of_gradients_;
};

// The keys of the next step are under way while a step computes, and so are the gradients of the
// last one: each is waited for just before it is needed.
TEST(RingAttention, MessagesAreUnderWayDuringAttention) {
  const ContextCase c{.ranks = 3, .length = 36};
  const Inputs x = make_inputs(c, DType::BF16);
  run_ranks(c.ranks, [&](World& threads) {
    Trace trace;
    const auto backend = make_traced_backend(make_cpu_backend(1), trace);
    TracedMessages group(threads.split("cp", 0, threads.rank()), trace);
    Arena arena(*backend);
    LocalProblem local(c, x, DType::BF16, group);
    const RingAttention ring(*backend, arena, group, local.sizes(), DType::BF16, true);
    const auto calls_of = [&](const auto& calls) {
      trace.begin();
      calls();
      trace.end();
      std::vector<std::string> names;
      for (const TraceSpan& span : trace.take()) {
        if (span.kind == SpanKind::Communication) names.push_back(span.name);
        if (span.work == WorkKind::Attention) names.push_back("attention");
      }
      return names;
    };
    const std::vector<std::string> send = {"send keys", "receive keys"},
                                   wait = {"wait keys", "wait keys"},
                                   send_sums = {"send gradients", "receive gradients"},
                                   wait_sums = {"wait gradients", "wait gradients"},
                                   attention = {"attention"};
    const auto in_order = [](const std::vector<std::vector<std::string>>& steps) {
      std::vector<std::string> all;
      for (const auto& step : steps) all.insert(all.end(), step.begin(), step.end());
      return all;
    };
    EXPECT_EQ(calls_of([&] { local.forward(ring, 1); }),
              in_order({send, attention, wait, send, attention, wait, attention}));
    EXPECT_EQ(calls_of([&] { local.backward(ring, 1); }),
              in_order({send, attention, wait, send, attention, send_sums, wait, attention,
                        wait_sums, send_sums, wait_sums}));
  });
}

// The constructor does not write memory, and forward and backward allocate none.
TEST(RingAttention, MemoryIsKnownBeforehand) {
  run_ranks(2, [](World& world) {
    const auto backend = make_cpu_backend(1);
    const auto group = world.split("cp", 0, world.rank());
    const ContextCase c{.length = 16, .alibi = true};
    const Inputs x = make_inputs(c, DType::BF16);
    LocalProblem local(c, x, DType::BF16, *group);
    PlanningAllocator nothing;
    Arena plan(nothing), arena(*backend);
    const auto build = [&](Arena& from, bool training) {
      return RingAttention(*backend, from, *group, local.sizes(), DType::BF16, training,
                           local.slopes());
    };
    build(plan, false);
    const RingAttention inference = build(arena, false);
    EXPECT_EQ(plan.total_bytes(), arena.total_bytes());
    // Two pairs of keys and values in flight: 2 x 2 x 8 tokens x 2 heads x 8 x 2 bytes.
    EXPECT_EQ(arena.bytes(Region::Communication), 1024u);
    local.forward(inference, 1);
    EXPECT_THROW(local.backward(inference, 1), Failure);
    build(plan, true);
    EXPECT_EQ(plan.bytes(Region::Communication), 1024u + 1024u + 2048u);
  });
}

// ---- Ulysses

void check_ulysses(ContextCase c, DType dtype = DType::F64) {
  c.method = ContextMethod::Ulysses;
  check(c, dtype);
}

// Heads that divide, and key-value heads that several ranks share; lengths that a ring could not
// split.
TEST(UlyssesAttention, IsAttentionOfTheWhole) {
  for (const int ranks : {2, 3, 4})
    for (const std::int64_t kv_heads : {12, 1})
      for (const std::int64_t sequences : {1, 3})
        check_ulysses({.ranks = ranks,
                       .sequences = sequences,
                       .length = 5 * ranks,
                       .heads = 12,
                       .kv_heads = kv_heads,
                       .most_sequences = 4});
  check_ulysses({.ranks = 3, .length = 3, .heads = 6, .kv_heads = 3});  // a token on each rank
  check_ulysses({.ranks = 8, .sequences = 2, .length = 40, .heads = 16, .kv_heads = 4});
  check_ulysses({.ranks = 2, .length = 32, .heads = 4, .kv_heads = 4, .dim = 8, .value_dim = 20});
  check_ulysses({.ranks = 4, .length = 32, .heads = 4, .kv_heads = 4, .dim = 12, .value_dim = 8});
}

TEST(UlyssesAttention, AlibiDocumentsAndWindows) {
  for (const std::int64_t window : {0, 1, 9, 40})
    for (const bool adjacent : {true, false})
      for (const std::int64_t sequences : {1, 2})
        check_ulysses({.ranks = 2,
                       .sequences = sequences,
                       .length = 80,
                       .heads = 4,
                       .kv_heads = 4,
                       .alibi = true,
                       .documents = true,
                       .window = window,
                       .adjacent = adjacent});
  check_ulysses(
      {.ranks = 8, .sequences = 2, .length = 64, .heads = 8, .kv_heads = 4, .documents = true});
}

TEST(UlyssesAttention, OtherPrecisions) {
  for (const DType dtype : {DType::F32, DType::BF16})
    for (const std::int64_t kv_heads : {2, 8})
      check_ulysses({.ranks = 4,
                     .sequences = 2,
                     .length = 128,
                     .heads = 8,
                     .kv_heads = kv_heads,
                     .dim = 16,
                     .documents = true,
                     .most_sequences = 3},
                    dtype);
}

// Queries and results once, keys and values once, or once for each rank if ranks share them. The
// backward sends them again, with the gradients.
TEST(UlyssesAttention, SendsNoMoreThanItMust) {
  for (const std::int64_t kv_heads : {8, 2}) {
    const ContextCase c{.ranks = 4,
                        .sequences = 2,
                        .length = 48,
                        .heads = 8,
                        .kv_heads = kv_heads,
                        .method = ContextMethod::Ulysses};
    const Inputs x = make_inputs(c, DType::BF16);
    run_ranks(c.ranks, [&](World& threads) {
      CountingWorld world(threads);
      const auto backend = make_cpu_backend(1);
      const auto group = world.split("cp", 0, world.rank());
      Arena arena(*backend);
      LocalProblem local(c, x, DType::BF16, *group);
      const auto attention = make_attention(*backend, arena, *group, c, local, DType::BF16);
      const Traffic& traffic = world.traffic("cp");
      // In bytes: a head of 2 x 12 tokens, of which a rank keeps a quarter.
      const double head = 2.0 * 12 * 8 * 2 * 3 / 4, kv = 2 * std::max<double>(4, c.kv_heads);
      local.forward(*attention, 1);
      EXPECT_EQ(traffic.bytes(), head * (2 * 8 + kv));
      EXPECT_EQ(traffic[Collective::AllToAll].calls, 4);
      world.reset();
      local.backward(*attention, 1);
      EXPECT_EQ(traffic.bytes(), head * (4 * 8 + 2 * kv));
      EXPECT_EQ(traffic[Collective::AllToAll].calls, 8);
    });
  }
}

TEST(UlyssesAttention, MemoryIsKnownBeforehand) {
  run_ranks(2, [](World& world) {
    const auto backend = make_cpu_backend(1);
    const auto group = world.split("cp", 0, world.rank());
    const ContextCase c{.length = 16, .method = ContextMethod::Ulysses};
    const Inputs x = make_inputs(c, DType::BF16);
    LocalProblem local(c, x, DType::BF16, *group);
    PlanningAllocator nothing;
    Arena plan(nothing), arena(*backend);
    const auto build = [&](Arena& from, bool training) {
      return UlyssesAttention(*backend, from, *group, local.sizes(), DType::BF16, training);
    };
    build(plan, false);
    const UlyssesAttention inference = build(arena, false);
    EXPECT_EQ(plan.total_bytes(), arena.total_bytes());
    // Queries, keys, values, results; sent and received: 2 x 4 x 8 tokens x 2 heads x 8 x 2 bytes.
    EXPECT_EQ(arena.bytes(Region::Communication), 2048u);
    local.forward(inference, 1);
    EXPECT_THROW(local.backward(inference, 1), Failure);
    build(plan, true);  // and the gradient of the results
    EXPECT_EQ(plan.bytes(Region::Communication), 2048u + 2560u);
  });
}

}  // namespace
}  // namespace kintsugi
