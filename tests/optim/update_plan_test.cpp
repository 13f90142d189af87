// Every element that a rank owns is updated once, with blocks of any size.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "backend/cpu/cpu_backend.h"
#include "optim/optimizer_state.h"
#include "support/parallel_run.h"

namespace kintsugi {
namespace {

struct Found {
  int times = 0;
  bool decays = false;
};

// Updates by element in the set's numbering, over all ranks of a layout.
std::map<std::int64_t, Found> updates(const ParameterSet& set, int ranks, int zero,
                                      std::int64_t most) {
  const auto backend = make_cpu_backend(1);
  const UpdateRules rules = update_rules({});
  std::map<std::int64_t, Found> found;
  for (int rank = 0; rank < ranks; ++rank) {
    PlanningAllocator nothing;
    Arena arena(nothing);
    const Groups groups = planned_groups({.dp = ranks}, {.dp = rank});
    const Sharding sharding(*backend, arena, set, groups, {.zero = zero, .precision = DType::BF16});
    const OptimizerState state(arena, sharding, rules, Side::Device);
    const auto n = static_cast<std::int64_t>(arena.bytes(Region::Optimizer));
    std::vector<std::int64_t> offsets;
    std::int64_t elements = 0;
    for (int bucket = 0; bucket < static_cast<int>(set.buckets().size()); ++bucket) {
      offsets.push_back(elements);
      elements += sharding.shard_elements(bucket);
    }
    EXPECT_EQ(n, 12 * elements) << "master and moments";
    std::int64_t next = 0;  // offset in the state
    for (const UpdateBlock& block : plan_updates(sharding, state, most)) {
      EXPECT_EQ(block.first, next);
      EXPECT_LE(block.count, most);
      next += block.count;
      for (const UpdateRange& range : block.ranges) {
        EXPECT_GE(range.at, block.first);
        EXPECT_LE(range.at + range.size(), block.first + block.count);
        EXPECT_EQ(range.gradient.elements(), range.size());
        int bucket = 0;
        while (set.buckets()[static_cast<std::size_t>(bucket)].end <= range.first_element) ++bucket;
        const std::int64_t first = range.first_element, begin = sharding.owned(bucket).begin;
        EXPECT_EQ(range.at, offsets[static_cast<std::size_t>(bucket)] + first - begin);
        EXPECT_EQ(range.weight.data(),
                  sharding.weights_at(bucket, {first, first + range.size()}).data());
        EXPECT_EQ(range.gradient.data(),
                  sharding.owned_gradients(bucket).rows(first - begin, range.size()).data());
        EXPECT_EQ(range.master.data(), state.master().rows(range.at, range.size()).data());
        EXPECT_EQ(range.slots.size(), 2u);
        for (std::size_t i = 0; i < range.slots.size(); ++i)
          EXPECT_EQ(range.slots[i].data(),
                    state.rules().front().slots[i].rows(range.at, range.size()).data());
        for (std::int64_t i = 0; i < range.size(); ++i) {
          ++found[first + i].times;
          found[first + i].decays = range.decays;
        }
      }
    }
    EXPECT_EQ(next, elements);
  }
  return found;
}

TEST(UpdatePlan, TakesEveryElementOnce) {
  for (const char* kind : {"gpt2", "llama-gqa"}) {
    const ParameterSet set(tiny_model(kind, 2));
    for (const int zero : {0, 1, 2, 3})
      for (const int ranks : {1, 3})
        for (const std::int64_t most : {16, 100, 1000, 1 << 22}) {
          if (ranks > 1 && zero == 0) continue;  // every rank would own everything
          SCOPED_TRACE(fmt::format("{}, ZeRO {} of {}, blocks of {}", kind, zero, ranks, most));
          const auto found = updates(set, ranks, zero, most);
          for (const Parameter& parameter : set.parameters())
            for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) {
              const auto at = found.find(parameter.offset + i);
              ASSERT_NE(at, found.end()) << parameter.name << " " << i;
              ASSERT_EQ(at->second.times, 1) << parameter.name << " " << i;
              ASSERT_EQ(at->second.decays, parameter.shape.rank() == 2) << parameter.name;
            }
        }
  }
}

}  // namespace
}  // namespace kintsugi
