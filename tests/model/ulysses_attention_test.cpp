#include "model/context_case.h"
#include "support/counting_communicator.h"

namespace kintsugi::contexts {
namespace {

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
}  // namespace kintsugi::contexts
