#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "energy/meters/find_meters.h"
#include "energy/sysfs_tree.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// ---- shared nodes

Environment environment(std::map<std::string, std::string> variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    if (at == variables.end()) return {};
    return at->second;
  };
}

class SharedNode : public testing::Test {
 protected:
  NodeShare share(const std::map<std::string, std::string>& variables,
                  const std::string& online = "0-127\n") {
    tree_.write("sys/devices/system/cpu/present", "0-127\n");
    tree_.write("sys/devices/system/cpu/online", online);
    return find_node_share(tree_.root(), environment(variables));
  }
  SysfsTree tree_;
};

TEST_F(SharedNode, AJobWithPartOfTheCpusSharesTheNode) {
  const NodeShare part = share({{"SLURM_JOB_CPUS_PER_NODE", "32"}, {"SLURM_CPUS_ON_NODE", "32"}});
  EXPECT_TRUE(part.shared());
  EXPECT_THAT(part.reason(),
              AllOf(HasSubstr("the job has 32 of 128 CPUs of this node: its counters include other "
                              "jobs; ask for the whole node"),
                    Not(HasSubstr("\n"))));
  EXPECT_TRUE(share({{"SLURM_CPUS_ON_NODE", "64"}}).shared());
}

TEST_F(SharedNode, AJobWithAllCpusHasTheNode) {
  EXPECT_FALSE(share({{"SLURM_JOB_CPUS_PER_NODE", "128(x16)"}}).shared());
  // A step may have fewer CPUs than its job.
  EXPECT_FALSE(share({{"SLURM_JOB_CPUS_PER_NODE", "128"}, {"SLURM_CPUS_ON_NODE", "7"}}).shared());
  // LUMI-G and Frontier reserve 8 of 64 cores.
  EXPECT_FALSE(share({{"SLURM_JOB_CPUS_PER_NODE", "112(x2)"}}).shared());
  EXPECT_TRUE(share({{"SLURM_JOB_CPUS_PER_NODE", "111(x2)"}}).shared());
  EXPECT_EQ(share({{"SLURM_JOB_CPUS_PER_NODE", "128"}}).reason(), "");
}

TEST_F(SharedNode, CpusThatAreOfflineDoNotCount) {
  EXPECT_FALSE(share({{"SLURM_JOB_CPUS_PER_NODE", "64"}}, "0-63\n").shared());
  EXPECT_TRUE(share({{"SLURM_JOB_CPUS_PER_NODE", "32"}}, "0-63\n").shared());
}

// 64 cores of two threads: CPU i and i + 64.
TEST_F(SharedNode, AJobMayHaveOneCpuOfEachCore) {
  for (const char* file : {"core_cpus_list", "thread_siblings_list"}) {
    for (int i = 0; i < 128; ++i)
      tree_.write(fmt::format("sys/devices/system/cpu/cpu{}/topology/{}", i, file),
                  fmt::format("{},{}\n", i % 64, i % 64 + 64));
    tree_.write("sys/devices/system/cpu/cpufreq/topology/core_cpus_list", "7\n");
    EXPECT_EQ(share({}).node_cores, 64) << file;
    // 56: low-noise mode of LUMI-G and Frontier.
    for (const auto& [cpus, shared] : {std::pair("64", false),
                                       {"56", false},
                                       {"55", true},
                                       {"32", true},
                                       {"66", true},
                                       {"112", false},
                                       {"128", false}})
      EXPECT_EQ(share({{"SLURM_JOB_CPUS_PER_NODE", cpus}}).shared(), shared) << cpus;
    tree_.remove("sys/devices/system/cpu");
  }
}

TEST_F(SharedNode, NodesMayDiffer) {
  std::map<std::string, std::string> variables{{"SLURM_JOB_CPUS_PER_NODE", "128(x2),32"},
                                               {"SLURM_NNODES", "3"}};
  for (const auto& [node, shared] : {std::pair("0", false), {"1", false}, {"2", true}}) {
    variables["SLURM_NODEID"] = node;
    EXPECT_EQ(share(variables).shared(), shared) << node;
  }
  // A step on some nodes of the job: it may be any of them.
  variables["SLURM_NNODES"] = "1";
  variables["SLURM_NODEID"] = "0";
  EXPECT_TRUE(share(variables).shared());
}

TEST_F(SharedNode, NothingIsKnownWithoutSlurmOrCpus) {
  EXPECT_FALSE(share({}).shared());
  EXPECT_FALSE(share({{"SLURM_JOB_CPUS_PER_NODE", "32"}}, "garbage").shared());
  EXPECT_FALSE(share({{"SLURM_JOB_CPUS_PER_NODE", "x"}, {"SLURM_CPUS_ON_NODE", "-3"}}).shared());
}

TEST(CpuLists, AreCounted) {
  EXPECT_THAT(cpus_per_node("64(x2),32"), ElementsAre(64, 64, 32));
  EXPECT_THAT(cpus_per_node("8"), ElementsAre(8));
  for (const char* text : {"", ",", "64(x2", "64(x0)", "64(x-1)", "64x2", "(x2)", "0", "64,",
                           "64(x99999999999)", "99999999999999999999", "1(x999999),1(x999999)"})
    EXPECT_THAT(cpus_per_node(text), IsEmpty()) << text;
  EXPECT_EQ(count_cpus("0-127"), 128);
  EXPECT_EQ(count_cpus("0"), 1);
  EXPECT_EQ(count_cpus("0-3,8-11,16"), 9);
  for (const char* text : {"", "-", "3-1", "0-", "a-b", "0-99999999999", "0,,1"})
    EXPECT_EQ(count_cpus(text), 0) << text;
}

// ---- levels

class FakeMeter : public Meter {
 public:
  using Meter::Meter;
  MeterReading read() override { return {}; }
};

class ChooseMeters : public testing::Test {
 protected:
  void add(const std::string& source, const std::string& scope, EnergyLevel level,
           MeterKind kind = MeterKind::Counter) {
    found_.meters.push_back(std::make_unique<FakeMeter>(
        MeterIdentity{.source = source, .scope = scope, .level = level, .kind = kind}));
  }
  // "pm_counters node", "rapl package0 package1".
  std::string chosen(EnergyLevel level) const {
    const LevelMeters meters = all()[level];
    std::string text = meters.source;
    for (const std::size_t i : meters.meters) {
      EXPECT_EQ(found_.meters[i]->identity().source, meters.source);
      text += " " + found_.meters[i]->identity().scope;
    }
    EXPECT_EQ(meters.meters.empty(), !meters.reason.empty());
    return text;
  }
  ChosenMeters all() const { return choose_meters(found_, search_, share_); }

  FoundMeters found_;
  MeterSearch search_;
  NodeShare share_;
};

TEST_F(ChooseMeters, OneSourcePerLevel) {
  add("estimate", "node", EnergyLevel::Node, MeterKind::Estimate);
  EXPECT_EQ(chosen(EnergyLevel::Node), "estimate node");
  add("hwmon", "node", EnergyLevel::Node, MeterKind::Power);
  EXPECT_EQ(chosen(EnergyLevel::Node), "hwmon node");
  add("ear", "node", EnergyLevel::Node);
  EXPECT_EQ(chosen(EnergyLevel::Node), "ear node");
  add("pm_counters", "node", EnergyLevel::Node);
  EXPECT_EQ(chosen(EnergyLevel::Node), "pm_counters node");
  add("rapl", "package0", EnergyLevel::Cpu);
  add("rapl", "package1", EnergyLevel::Cpu);
  EXPECT_EQ(chosen(EnergyLevel::Cpu), "rapl package0 package1");
  add("pm_counters", "cpu", EnergyLevel::Cpu);
  EXPECT_EQ(chosen(EnergyLevel::Cpu), "pm_counters cpu");
  EXPECT_EQ(chosen(EnergyLevel::Memory), "");
  EXPECT_THAT(all()[EnergyLevel::Memory].reason, HasSubstr("memory"));
}

TEST_F(ChooseMeters, ASourceIsNotAddedToItself) {
  add("amdsmi", "gpu0", EnergyLevel::Gpu, MeterKind::Power);
  add("amdsmi", "gpu0", EnergyLevel::Gpu);
  add("amdsmi", "gpu0", EnergyLevel::Gpu);
  EXPECT_EQ(chosen(EnergyLevel::Gpu), "amdsmi gpu0");
  EXPECT_THAT(all()[EnergyLevel::Gpu].meters, ElementsAre(1));
  add("ear", "cpu", EnergyLevel::Cpu);
  add("ear", "package0", EnergyLevel::Cpu);
  EXPECT_EQ(chosen(EnergyLevel::Cpu), "ear cpu");
}

TEST_F(ChooseMeters, ModulesCountOnlyIfTheRunUsesAllGpus) {
  for (int i = 0; i < 4; ++i) add("pm_counters", fmt::format("gpu{}", i), EnergyLevel::Gpu);
  for (int i = 0; i < 2; ++i) add("nvml", fmt::format("gpu{}", i), EnergyLevel::Gpu);
  EXPECT_EQ(chosen(EnergyLevel::Gpu), "pm_counters gpu0 gpu1 gpu2 gpu3");
  search_.gpus = std::vector<std::string>{"0000:02:00.0", "0000:01:00.0"};
  EXPECT_EQ(chosen(EnergyLevel::Gpu), "nvml gpu0 gpu1");
  found_.node_gpus = 2;
  EXPECT_EQ(chosen(EnergyLevel::Gpu), "pm_counters gpu0 gpu1 gpu2 gpu3");
  found_.node_gpus = 8;
  EXPECT_EQ(chosen(EnergyLevel::Gpu), "nvml gpu0 gpu1");
  found_.meters.resize(4);
  EXPECT_EQ(chosen(EnergyLevel::Gpu), "");
  EXPECT_THAT(all()[EnergyLevel::Gpu].reason, HasSubstr("does not use all GPUs"));
}

TEST_F(ChooseMeters, ARunWithoutGpusHasNoGpuLevel) {
  add("pm_counters", "gpu0", EnergyLevel::Gpu);
  add("nvml", "gpu0", EnergyLevel::Gpu);
  add("pm_counters", "node", EnergyLevel::Node);
  search_.gpus.emplace();
  EXPECT_EQ(chosen(EnergyLevel::Gpu), "");
  EXPECT_EQ(all()[EnergyLevel::Gpu].reason, "the run uses no GPU");
  EXPECT_EQ(chosen(EnergyLevel::Node), "pm_counters node");
}

TEST_F(ChooseMeters, WhatIsLeftOutIsNamed) {
  add("rapl", "package0", EnergyLevel::Cpu);
  found_.missing = {{"rapl", "permission denied", "package1"}, {"rapl", "psys"}};
  EXPECT_EQ(all()[EnergyLevel::Cpu].uncovered, "package1: permission denied");
  add("hwmon", "cpu", EnergyLevel::Cpu, MeterKind::Power);  // all of it
  EXPECT_EQ(chosen(EnergyLevel::Cpu), "hwmon cpu");
  add("nvml", "gpu0", EnergyLevel::Gpu);
  search_.gpus = std::vector<std::string>{"0000:01:00.0", "0000:02:00.0"};
  EXPECT_EQ(all()[EnergyLevel::Gpu].uncovered, "gpu1 (0000:02:00.0) has no meter");
  found_.missing.push_back({"nvml", "second die", "gpu1", true});
  EXPECT_EQ(all()[EnergyLevel::Gpu].uncovered, "");
}

TEST_F(ChooseMeters, TheReasonIsThatOfTheMetersThatCannotBeRead) {
  found_.missing = {{"rapl", "permission denied", "package0"}, {"hwmon", "no power_meter"}};
  EXPECT_EQ(all()[EnergyLevel::Cpu].reason, "rapl package0: permission denied");
}

TEST_F(ChooseMeters, ASharedNodeLeavesOnlyItsGpus) {
  for (const auto& [scope, level] :
       {std::pair("node", EnergyLevel::Node), {"cpu", EnergyLevel::Cpu}}) {
    add("pm_counters", scope, level);
  }
  add("nvml", "gpu0", EnergyLevel::Gpu);
  share_ = {.job_cpus = 32, .node_cpus = 128};
  EXPECT_EQ(chosen(EnergyLevel::Gpu), "nvml gpu0");
  for (const EnergyLevel level : {EnergyLevel::Node, EnergyLevel::Cpu, EnergyLevel::Memory})
    EXPECT_EQ(all()[level].reason, share_.reason());
}

}  // namespace
}  // namespace kintsugi
