// A run that does not fit is refused before it starts, with a proposal that fits.
#include "train/memory_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "backend/cpu/cpu_backend.h"
#include "support/late_backend.h"
#include "train/engine_options.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A device with `device` bytes of memory and a host with `host` bytes.
class Machine : public LateBackend {
 public:
  Machine(std::size_t device, std::size_t host) : LateBackend(1, host), device_(device) {}
  std::size_t available_bytes() const override { return device_; }

 private:
  std::size_t device_;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kPlenty = std::size_t{1} << 40;

RunConfig config(const std::vector<std::string>& set) {
  std::vector<std::string> all = {"train.precision=bf16", "batch={global: 8, micro: 8}"};
  all.insert(all.end(), set.begin(), set.end());
  return parse_run_config("model: {preset: llama-tiny}\ndata: {train: [{path: a.txt}]}\n",
                          "test.yaml", all);
}

std::string error_of(Backend& backend, const RunConfig& config, int node_ranks = 1) {
  Groups groups = single_rank_groups(backend);
  groups.node_ranks = node_ranks;
  try {
    check_memory(backend, config, groups);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

class MemoryCheckTest : public testing::Test {
 protected:
  MemoryNeed need(const std::vector<std::string>& set) {
    Machine machine(kPlenty, kPlenty);
    return planned_memory(machine, config(set), single_rank_groups(machine));
  }
  const std::vector<std::string> offloaded_ = {"offload={optimizer: true, update: device}"};
};

TEST_F(MemoryCheckTest, CountsDeviceAndHostMemory) {
  const MemoryNeed plain = need({}), offloaded = need(offloaded_);
  EXPECT_EQ(plain.host, 0u);
  EXPECT_GT(offloaded.host, 0u);
  EXPECT_LT(offloaded.device, plain.device + 200 * kMiB);
  Machine just(offloaded.device, offloaded.host);
  EXPECT_EQ(error_of(just, config(offloaded_)), "no error");
  EXPECT_TRUE(fits(offloaded, just, 1));
  EXPECT_FALSE(fits(offloaded, just, 2)) << "two ranks share the host";
}

TEST_F(MemoryCheckTest, RefusesWhatDoesNotFitTheHost) {
  const MemoryNeed need = this->need(offloaded_);
  Machine machine(kPlenty, need.host - 1);
  EXPECT_THAT(error_of(machine, config(offloaded_)),
              AllOf(HasSubstr("this run offloads"), HasSubstr("to host memory, but only"),
                    HasSubstr("set optimizer.moments: bf16")));
  Machine shared(kPlenty, 2 * need.host - 1);
  EXPECT_EQ(error_of(shared, config(offloaded_)), "no error");
  EXPECT_THAT(error_of(shared, config(offloaded_), 2), HasSubstr("on each of 2 ranks"));
}

TEST_F(MemoryCheckTest, RefusesWhatDoesNotFitTheDevice) {
  Machine machine(need({}).device - 1, kPlenty);
  EXPECT_THAT(error_of(machine, config({})), HasSubstr("batch.micro: 8 with layout.recompute: "));
}

TEST_F(MemoryCheckTest, ProposesOffloadWhereNothingElseHelps) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(),
                {"batch={global: 8, micro: 1}", "layout.recompute=full", "model.layers=40",
                 "model.hidden_size=512", "model.heads=8", "model.ffn_size=2048"});
    return more;
  };
  const MemoryNeed plain = need(with({})), offloaded = need(with({"offload.optimizer=true"}));
  ASSERT_LT(offloaded.device, plain.device);
  Machine machine(offloaded.device, kPlenty);
  EXPECT_THAT(error_of(machine, config(with({}))), HasSubstr("offload.optimizer: true would take"));
  const MemoryNeed more = need(with({"offload={optimizer: true, gradients: true}"}));
  ASSERT_LT(more.device, offloaded.device);
  Machine smaller(more.device, kPlenty);
  EXPECT_THAT(error_of(smaller, config(with({}))),
              HasSubstr("offload: {optimizer: true, gradients: true} would take"));
  Machine small_host(offloaded.device, offloaded.host - 1);
  EXPECT_THAT(error_of(small_host, config(with({}))), HasSubstr("use a smaller model"));
}

// The proposed number of ranks and layout do fit.
TEST_F(MemoryCheckTest, ProposesANumberOfRanks) {
  const RunConfig large = config({"model.layers=32", "model.hidden_size=512", "model.heads=8",
                                  "model.ffn_size=2048", "batch={global: 8, micro: 1}"});
  Machine whole(kPlenty, 1);
  const std::size_t needed = planned_memory(whole, large, single_rank_groups(whole)).device;
  Machine machine(needed / 5, 1);
  const std::string error = error_of(machine, large);
  int ranks = 0;
  RunConfig proposed = large;
  proposed.layout.recompute = Recompute::Full;
  const std::size_t at = error.find("start ");
  ASSERT_NE(at, std::string::npos) << error;
  ASSERT_EQ(std::sscanf(error.c_str() + at, "start %d ranks", &ranks), 1) << error;
  const std::size_t layout = error.find("layout: {tp");
  ASSERT_NE(layout, std::string::npos) << error;
  ASSERT_EQ(std::sscanf(error.c_str() + layout, "layout: {tp: %d, pp: %d, zero: %d",
                        &proposed.layout.tp, &proposed.layout.pp, &proposed.layout.zero),
            3)
      << error;
  EXPECT_GE(ranks, 4) << "a fifth of the memory each";
  EXPECT_LE(ranks, 16);
  EXPECT_THAT(error, HasSubstr("mpirun -np " + std::to_string(ranks)));
  const Grid grid = grid_of(layout_on(proposed, ranks), proposed.model);
  for (int stage = 0; stage < grid.pp; ++stage)
    EXPECT_TRUE(
        fits(planned_memory(machine, proposed, planned_groups(grid, {.pp = stage})), machine, 1))
        << error;
}

// On a GPU: scratch memory of the fused attention and buffers of NCCL.
TEST_F(MemoryCheckTest, CountsTheUseOfLibraries) {
  Machine machine(kPlenty, kPlenty);
  const LibraryUse alone = library_use(config({}), single_rank_groups(machine));
  // llama-tiny: 4 heads of 32, 8 sequences.
  EXPECT_EQ(alone.attention_elements, 8 * config({}).data.sequence_length * 4 * 32);
  EXPECT_EQ(alone.groups, 0);
  const LibraryUse four =
      library_use(config({"batch={global: 8, micro: 4}"}), planned_groups({.tp = 2, .dp = 2}, {}));
  EXPECT_EQ(four.attention_elements, 4 * config({}).data.sequence_length * 2 * 32);
  EXPECT_GE(four.groups, 2) << "tensor and data ranks";
  // dq in fp32, dk and dv in 16 bits.
  EXPECT_EQ(gpu_library_bytes({.attention_elements = 1000}), 8000u);
  EXPECT_EQ(gpu_library_bytes({.groups = 3}), 3 * gpu_library_bytes({.groups = 1}));
  EXPECT_GE(gpu_library_bytes({.groups = 1}), 128 * kMiB);
}

TEST_F(MemoryCheckTest, CountsLibrariesOfTheDevice) {
  Machine machine(1000, 500);
  EXPECT_TRUE(fits({.device = 900, .libraries = 100}, machine, 1));
  EXPECT_FALSE(fits({.device = 900, .libraries = 101}, machine, 1));
}

// OpenBLAS has a buffer for each thread.
TEST_F(MemoryCheckTest, TheCpuPlanIncludesBuffersOfBlas) {
  const auto one = make_cpu_backend(1), three = make_cpu_backend(3);
  EXPECT_GT(one->own_bytes(), kMiB);
  EXPECT_EQ(three->own_bytes(), 3 * one->own_bytes());
}

// If the device is the host, there is one memory.
TEST_F(MemoryCheckTest, AddsUpInTheCpuBackend) {
  const auto cpu = make_cpu_backend(1);
  const MemoryNeed one = planned_memory(*cpu, config(offloaded_), single_rank_groups(*cpu));
  const MemoryNeed two = need(offloaded_);
  EXPECT_EQ(one.host, 0u);
  EXPECT_EQ(one.device, two.device + two.host);
}

}  // namespace
}  // namespace kintsugi
