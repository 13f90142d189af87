#include <set>

#include "backend/attention_mask.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "backend/traced_backend.h"
#include "model/context_case.h"
#include "support/counting_communicator.h"

namespace kintsugi::contexts {
namespace {

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
  // Chunks of 10 tokens, and a call for each pair of chunks if there is a window. A window of 11
  // reaches into the chunk before, which is a neighbour's; the middle chunks are both the last
  // rank's.
  for (const auto& [window, calls] :
       std::vector<std::pair<std::int64_t, std::vector<int>>>{{0, {4, 4, 4, 4}},
                                                              {1, {2, 2, 2, 2}},
                                                              {2, {3, 4, 4, 4}},
                                                              {11, {3, 4, 4, 4}},
                                                              {12, {4, 5, 6, 6}}}) {
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

// Calls whose masks the libraries' fused attention does not have.
class OtherMasks final : public CpuBackend {
 public:
  OtherMasks() : CpuBackend(1) {}
  int count = 0;

 protected:
  void do_attention_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                            const AttentionOptions& options) override {
    note(lse, q, k, options);
    CpuBackend::do_attention_forward(out, lse, q, k, v, options);
  }
  void do_attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                             Tensor q, Tensor k, Tensor v,
                             const AttentionOptions& options) override {
    note(lse, q, k, options);
    CpuBackend::do_attention_backward(dq, dk, dv, dout, out, lse, q, k, v, options);
  }

 private:
  void note(const Tensor& lse, const Tensor& q, const Tensor& k, const AttentionOptions& options) {
    const AttentionMask mask(options, q.extent(1), k.extent(1));
    const bool all = mask.begin(mask.queries - 1) == 0 && mask.end(0) == mask.keys,
               same = mask.queries == mask.keys && mask.query_positions == mask.key_positions,
               consecutive = mask.key_positions.chunk >= mask.keys;
    const bool needs_consecutive = options.alibi_slopes || (options.window > 0 && !all);
    const bool has = (all || same) && (consecutive || !needs_consecutive) && lse.contiguous();
    count += has ? 0 : 1;
  }
};

// With a window, only pairs of chunks in which it ends have another mask: here each chunk's and the
// one before it, of which a neighbour has one.
TEST(RingAttention, CallsHaveTheMasksOfFusedAttention) {
  const auto others_of = [](const ContextCase& c) {
    const Inputs x = make_inputs(c, DType::BF16);
    std::vector<int> counts(static_cast<std::size_t>(c.ranks));
    run_ranks(c.ranks, [&](World& world) {
      OtherMasks backend;
      const auto group = world.split("cp", 0, world.rank());
      Arena arena(backend);
      LocalProblem local(c, x, DType::BF16, *group);
      const RingAttention ring(backend, arena, *group, local.sizes(), DType::BF16, true,
                               local.slopes());
      local.forward(ring, 1);
      local.backward(ring, 1);
      counts[static_cast<std::size_t>(world.rank())] = backend.count;
    });
    return counts;
  };
  const std::vector<int> none = {0, 0, 0};
  EXPECT_EQ(others_of({.ranks = 3, .sequences = 2, .length = 60}), none);
  EXPECT_EQ(others_of({.ranks = 3, .length = 60, .documents = true}), none);
  EXPECT_EQ(others_of({.ranks = 3, .sequences = 2, .length = 60, .alibi = true}), none);
  EXPECT_EQ(others_of({.ranks = 3, .length = 60, .window = 60}), none);
  // Forward and backward; the first chunk of rank 0 has none before it.
  EXPECT_EQ(others_of({.ranks = 3, .length = 60, .window = 5}), (std::vector<int>{2, 4, 4}));
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

}  // namespace
}  // namespace kintsugi::contexts
