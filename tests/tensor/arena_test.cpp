#include "tensor/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>

namespace kintsugi {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// Real memory; counts allocations and releases.
class Ledger final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    if (taken_.size() == limit_) throw std::bad_alloc();
    void* address = ::operator new(bytes);
    taken_[address] = bytes;
    return address;
  }
  void release(void* address, std::size_t) noexcept override {
    released_ += 1;
    unknown_ += taken_.erase(address) == 0;
    ::operator delete(address);
  }

  std::map<void*, std::size_t> taken_;
  std::size_t limit_ = 1000;
  int released_ = 0, unknown_ = 0;
};

void fill(Arena& arena) {
  arena.allocate(Region::Weights, "weights", DType::BF16, {100, 7});
  arena.allocate(Region::Gradients, "gradients", DType::F32, {100, 7});
  arena.allocate(Region::Optimizer, "moments", DType::F32, {2, 100, 7});
  arena.allocate(Region::Activations, "queries", DType::BF16, {3, 5});
  arena.allocate(Region::Activations, "keys", DType::BF16, {3, 5});
  arena.allocate(Region::Activations, "keys", DType::BF16, {3, 5});
  arena.allocate(Region::Workspace, "scalar", DType::F64, {});
  arena.allocate(Region::Workspace, "nothing", DType::F32, {0, 9});
}

TEST(ArenaTest, CountsRegionsAndTheTotal) {
  Ledger ledger;
  Arena arena(ledger);
  EXPECT_EQ(arena.total_bytes(), 0u);
  fill(arena);
  EXPECT_EQ(arena.bytes(Region::Weights), 1400u);
  EXPECT_EQ(arena.bytes(Region::Gradients), 2800u);
  EXPECT_EQ(arena.bytes(Region::Optimizer), 5600u);
  EXPECT_EQ(arena.bytes(Region::Activations), 90u);
  EXPECT_EQ(arena.bytes(Region::Workspace), 8u);
  EXPECT_EQ(arena.bytes(Region::Communication), 0u);
  EXPECT_EQ(arena.total_bytes(), 9898u);
}

TEST(ArenaTest, AllocatesWritableMemoryOfTheRequestedShape) {
  Ledger ledger;
  Arena arena(ledger);
  const Tensor a = arena.allocate(Region::Weights, "a", DType::I32, {2, 3});
  const Tensor b = arena.allocate(Region::Weights, "b", DType::I32, {2, 3});
  EXPECT_EQ(a.shape(), (Shape{2, 3}));
  EXPECT_EQ(a.dtype(), DType::I32);
  EXPECT_TRUE(a.contiguous());
  EXPECT_TRUE(arena.allocate(Region::Weights, "none", DType::I32, {0}));
  for (int i = 0; i < 6; ++i) a.as<std::int32_t>()[i] = i;
  for (int i = 0; i < 6; ++i) b.as<std::int32_t>()[i] = -1;
  for (int i = 0; i < 6; ++i) EXPECT_EQ(a.as<std::int32_t>()[i], i);
}

TEST(ArenaTest, ReleasesEverythingAtTheEnd) {
  Ledger ledger;
  {
    Arena arena(ledger);
    fill(arena);
    EXPECT_EQ(ledger.taken_.size(), 8u);
    EXPECT_EQ(ledger.released_, 0);
  }
  EXPECT_TRUE(ledger.taken_.empty());
  EXPECT_EQ(ledger.released_, 8);
  EXPECT_EQ(ledger.unknown_, 0);
}

TEST(ArenaTest, ReleasesEverythingWhenMemoryRunsOut) {
  Ledger ledger;
  ledger.limit_ = 3;
  {
    Arena arena(ledger);
    EXPECT_THROW(fill(arena), std::bad_alloc);
    EXPECT_EQ(arena.total_bytes(), 9800u) << "the failed allocation is not counted";
  }
  EXPECT_TRUE(ledger.taken_.empty());
}

TEST(Planning, GivesTheSameTotalsAsRealMemory) {
  Ledger ledger;
  PlanningAllocator nothing;
  Arena real(ledger), plan(nothing);
  fill(real);
  fill(plan);
  for (int i = 0; i < kRegions; ++i)
    EXPECT_EQ(plan.bytes(static_cast<Region>(i)), real.bytes(static_cast<Region>(i)));
  EXPECT_EQ(plan.total_bytes(), real.total_bytes());
  EXPECT_EQ(plan.table(), real.table());
}

// More memory than any machine has: planning allocates nothing, and ranges do not overlap.
TEST(Planning, AllocatesNoMemory) {
  PlanningAllocator nothing;
  Arena plan(nothing);
  const std::int64_t tebi = std::int64_t{1} << 40;
  std::uintptr_t end = 1;
  for (int i = 0; i < 1000; ++i) {
    const Tensor x = plan.allocate(Region::Weights, "layer", DType::F32, {tebi});
    const auto begin = reinterpret_cast<std::uintptr_t>(x.data());
    EXPECT_GE(begin, end);
    EXPECT_EQ(begin % 256, 0u);
    end = begin + x.bytes();
  }
  EXPECT_EQ(plan.total_bytes(), std::size_t{4000} << 40);
}

// A device with separate host memory.
class TwoLedgers final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  void release(void* address, std::size_t bytes) noexcept override {
    device_.release(address, bytes);
  }
  Allocator& host_memory() override { return host_; }
  Ledger device_, host_;
};

TEST(ArenaTest, AllocatesHostMemoryOnTheHost) {
  TwoLedgers both;
  {
    Arena arena(both);
    arena.allocate(Region::Weights, "weights", DType::BF16, {100});
    EXPECT_EQ(arena.table().find("in host memory"), std::string::npos);
    arena.allocate(Region::Optimizer, "moments", DType::F32, {1 << 20}, Side::Host);
    arena.allocate(Region::Optimizer, "scalars", DType::F32, {1});
    EXPECT_EQ(both.device_.taken_.size(), 2u);
    EXPECT_EQ(both.host_.taken_.size(), 1u);
    EXPECT_EQ(arena.total_bytes(), 204u);
    EXPECT_EQ(arena.total_bytes(Side::Host), std::size_t{4} << 20);
    EXPECT_EQ(arena.bytes(Region::Optimizer), 4u);
    EXPECT_EQ(arena.bytes(Region::Optimizer, Side::Host), std::size_t{4} << 20);
    EXPECT_THAT(arena.table(), ContainsRegex("total +204 B\nin host memory\n  optimizer +4 MiB +"
                                             "moments 4 MiB\n  total +4 MiB"));
  }
  EXPECT_TRUE(both.device_.taken_.empty() && both.host_.taken_.empty());
  EXPECT_EQ(both.device_.unknown_ + both.host_.unknown_, 0);
}

TEST(ArenaTable, NamesRegionsAndTheirLargestAllocations) {
  PlanningAllocator nothing;
  Arena plan(nothing);
  const auto take = [&](const char* name, std::int64_t kibi) {
    plan.allocate(Region::Activations, name, DType::U8, {kibi << 10});
  };
  take("small", 1);
  take("queries", 40);
  take("keys", 30);
  take("keys", 30);
  take("values", 20);
  take("tiny", 2);
  plan.allocate(Region::Weights, "weights", DType::F32, {std::int64_t{3} << 28});
  const std::string table = plan.table();
  EXPECT_THAT(table,
              ContainsRegex("activations +123 KiB +keys 60 KiB, queries 40 KiB, values 20 KiB, …"));
  EXPECT_THAT(table, ContainsRegex("weights +3 GiB +weights 3 GiB\n"));
  EXPECT_THAT(table, ContainsRegex("total +3 GiB"));
  EXPECT_THAT(table, testing::Not(HasSubstr("optimizer")));
}

}  // namespace
}  // namespace kintsugi
