#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "launch/topology.h"
#include "plan/machines/machine.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Topology recorded(const std::string& name) {
  return load_topology(std::filesystem::path(source_directory()) / "tests/launch/topologies" /
                       name);
}

const CpuSet kLowNoise = {0, 8, 16, 24, 32, 40, 48, 56};
constexpr const char* kLumiMasks =
    "mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,"
    "0xfe0000000000";

TEST(CpuSets, RangesAndMasks) {
  EXPECT_EQ(to_ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(parse_ranges("0-2,5 7-8"), (CpuSet{0, 1, 2, 5, 7, 8}));
  EXPECT_EQ(to_mask({1, 2, 3, 4, 5, 6, 7}), "0xfe");
  EXPECT_EQ(to_mask({64}), "0x10000000000000000");
  EXPECT_EQ(parse_mask("0x10000000000000001"), (CpuSet{0, 64}));
  EXPECT_EQ(parse_mask("FE"), (CpuSet{1, 2, 3, 4, 5, 6, 7}));
  for (const char* text : {"", "0x", "0xg", "-1", "0x 1"})
    EXPECT_THAT(user_error_of([&] { parse_mask(text); }), HasSubstr("no CPU mask")) << text;
  for (const char* text : {"", ",", "a", "3-", "-3", "1-2-3", "99999", "1.5"})
    EXPECT_THAT(user_error_of([&] { parse_ranges(text); }), HasSubstr("no list of numbers"))
        << text;
  EXPECT_THAT(user_error_of([] { parse_ranges("7-3"); }), HasSubstr("backward"));
}

TEST(Topologies, NamesTheLineThatIsWrong) {
  const auto wrong = [](std::vector<std::string> lines) {
    return user_error_of([&] { parse_topology(lines, "x.yaml"); });
  };
  EXPECT_THAT(wrong({"numa 0: cores 0-3", "numa: cores 4-7"}),
              AllOf(HasSubstr("x.yaml"), HasSubstr("'numa: cores 4-7'"), HasSubstr("is expected")));
  EXPECT_THAT(wrong({"numa 0: cores 0-3", "numa 1: cores 3-5"}), HasSubstr("CPU 3 is in two"));
  EXPECT_THAT(wrong({"numa 0: cores 0-3", "numa 0: cores 4-5"}), HasSubstr("domain 0 is listed"));
  EXPECT_THAT(wrong({"numa 0: gpus 0"}), HasSubstr("no cores"));
  EXPECT_THAT(wrong({"numa 0: cores 0-3; threads 4-6"}), HasSubstr("3 threads do not divide"));
  EXPECT_THAT(wrong({"numa 0: cores 0-3; gpus 1"}), HasSubstr("must be 0 to 0"));
  EXPECT_THAT(wrong({"numa 0: cores 0-3; disks 1"}), HasSubstr("'disks 1'"));
  EXPECT_THAT(wrong({}), HasSubstr("no NUMA domain"));
}

// Each rank has cores, none has another rank's or a reserved one, all are next to its GPU. Computed
// here from the recorded text alone.
void expect_sound(const Topology& topology, const CpuSet& reserved, const RankCpus& cpus) {
  std::map<int, std::size_t> owner;
  for (std::size_t rank = 0; rank < cpus.size(); ++rank) {
    EXPECT_FALSE(cpus[rank].empty());
    for (const int cpu : cpus[rank]) {
      EXPECT_TRUE(owner.emplace(cpu, rank).second) << "ranks share CPU " << cpu;
      EXPECT_FALSE(reserved.contains(cpu)) << cpu;
      int domains = 0;
      for (const NumaDomain& domain : topology.domains)
        if (domain.core_of.contains(cpu) && domain.gpus.contains(static_cast<int>(rank))) ++domains;
      EXPECT_EQ(domains, 1) << "rank " << rank << " has CPU " << cpu;
    }
  }
}

// The masks of LUMI's documentation.
TEST(Binding, LumiHasItsPublishedMasks) {
  const Topology node = recorded("lumi-g.txt");
  const RankCpus cpus = bind_ranks(node, kLowNoise, 8);
  EXPECT_EQ(to_cpu_bind(cpus), kLumiMasks);
  expect_sound(node, kLowNoise, cpus);
  for (const CpuSet& one : cpus) EXPECT_EQ(one.size(), 7u);
  EXPECT_NO_THROW(check_masks(cpus, node, kLowNoise, 8, "masks"));
  EXPECT_EQ(to_cpu_bind(parse_cpu_bind(kLumiMasks)), kLumiMasks);
}

// A job script that was published with its first mask twice.
TEST(Binding, TheFirstMaskTwiceIsRefused) {
  std::string twice = kLumiMasks;
  twice.replace(twice.find("0xfe00000000000000"), std::string("0xfe00000000000000").size(),
                "0xfe000000000000");
  EXPECT_THAT(user_error_of([&] {
                check_masks(parse_cpu_bind(twice), recorded("lumi-g.txt"), kLowNoise, 8,
                            "--cpu-bind");
              }),
              HasSubstr("--cpu-bind: ranks 0 and 1 share cores 49-55"));
}

TEST(Binding, SaysWhatIsWrongWithAMask) {
  const Topology node = recorded("lumi-g.txt");
  const auto wrong = [&](std::string from, std::string to) {
    std::string text = kLumiMasks;
    text.replace(text.find(from), from.size(), to);
    return user_error_of([&] { check_masks(parse_cpu_bind(text), node, kLowNoise, 8, "b"); });
  };
  EXPECT_THAT(wrong("0xfe0000,", "0x7f0000,"), HasSubstr("rank 2 has core 16, reserved"));
  EXPECT_THAT(wrong("0xfe,", "0x0,"), HasSubstr("rank 4 is empty"));
  EXPECT_THAT(wrong("0xfe,", "0x100000000000000000000000000000000,"),
              HasSubstr("rank 4 has CPUs 128, which the node does not have"));
  EXPECT_THAT(wrong("0xfe0000,0xfe000000,0xfe,", "0xfe,0xfe000000,0xfe0000,"),
              HasSubstr("rank 2 has cores 1-7 of NUMA domain 0, but its GPU is in domain 1 (cores "
                        "16-31)"));
  // CPU 65 is the second hardware thread of core 1.
  EXPECT_THAT(wrong("0xfe00,", "0x2000000000000fe00,"), HasSubstr("ranks 4 and 5 share core 1"));
  EXPECT_THAT(wrong(",0xfe0000000000", ""), HasSubstr("b has 7 masks for 8 ranks"));
  EXPECT_THAT(user_error_of([] { parse_cpu_bind("map_cpu:1,2"); }), HasSubstr("mask_cpu:0xfe"));
}

TEST(Binding, EveryRecordedMachine) {
  for (const auto& [file, ranks, cores] :
       std::vector<std::tuple<std::string, int, std::size_t>>{{"frontier.txt", 8, 8},
                                                              {"juwels-booster.txt", 4, 6},
                                                              {"snellius-h100.txt", 4, 16},
                                                              {"snellius-a100.txt", 4, 18}}) {
    const Topology node = recorded(file);
    const RankCpus cpus = bind_ranks(node, {}, ranks);
    expect_sound(node, {}, cpus);
    for (const CpuSet& one : cpus) EXPECT_EQ(one.size(), cores) << file;
    EXPECT_NO_THROW(check_masks(cpus, node, {}, ranks, file)) << file;
  }
  // GPUs 0 to 3 at NUMA domains 3, 1, 7, 5 of six cores each.
  EXPECT_EQ(to_cpu_bind(bind_ranks(recorded("juwels-booster.txt"), {}, 4)),
            "mask_cpu:0xfc0000,0xfc0,0xfc0000000000,0xfc0000000");
}

TEST(Binding, MachineFilesHaveTheRecordedTopologies) {
  for (const char* name :
       {"lumi-g", "frontier", "juwels-booster", "snellius-h100", "snellius-a100"}) {
    const Machine machine = load_machine(name);
    EXPECT_EQ(parse_topology(machine.topology, name), recorded(std::string(name) + ".txt")) << name;
    EXPECT_EQ(parse_topology(machine.topology, name).gpus(), machine.node.gpus) << name;
  }
}

// As the machine files say it: GCDs 0,1 are next to domain 3; 2,3 to 1; 4,5 to 0; 6,7 to 2, and no
// rank has the first core of a CCD.
TEST(Binding, MachinesOfMi250xFollowTheirGcds) {
  for (const char* name : {"lumi-g", "frontier"}) {
    const Machine machine = load_machine(name);
    const Topology node = parse_topology(machine.topology, name);
    const CpuSet reserved = parse_ranges(machine.launch.reserved_cores.value_or(""));
    EXPECT_EQ(reserved, kLowNoise) << name;
    const RankCpus cpus = bind_ranks(node, reserved, 8);
    EXPECT_EQ(to_cpu_bind(cpus), kLumiMasks) << name;
    const std::vector<int> domains = {3, 3, 1, 1, 0, 0, 2, 2};
    for (int gcd = 0; gcd < 8; ++gcd)
      EXPECT_EQ(node.with_gpu(gcd)->number, domains[static_cast<std::size_t>(gcd)]) << name;
    // The two GCDs of a module are in one domain.
    EXPECT_EQ(machine.node.module_gpus, 2) << name;
    EXPECT_EQ(machine.launch.cpus_per_task, 7) << name;
  }
}

// Fewer ranks than GCDs still sit next to theirs.
TEST(Binding, FourRanksOnTwoModules) {
  EXPECT_EQ(to_cpu_bind(bind_ranks(recorded("lumi-g.txt"), kLowNoise, 4)),
            "mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000");
}

TEST(Binding, WithoutGpusCoresAreDividedInOrder) {
  const Topology node = parse_topology({"numa 0: cores 0-3", "numa 1: cores 4-7"}, "x");
  EXPECT_EQ(to_cpu_bind(bind_ranks(node, {0}, 3)), "mask_cpu:0x6,0x18,0x60");
  EXPECT_THAT(user_error_of([&] { bind_ranks(node, {}, 9); }), HasSubstr("fewer ranks per node"));
  const Topology one = parse_topology({"numa 0: cores 0-3; gpus 0"}, "x");
  EXPECT_THAT(user_error_of([&] { bind_ranks(one, {}, 2); }), HasSubstr("has 1 GPU"));
}

TEST(Topologies, TextAndBack) {
  for (const char* file : {"lumi-g.txt", "juwels-booster.txt", "snellius-h100.txt"}) {
    const Topology node = recorded(file);
    EXPECT_EQ(parse_topology(to_lines(node), "again"), node) << file;
  }
}

// Written by hwloc's own tool for a machine of two packages with two NUMA domains each.
TEST(Topologies, HwlocXml) {
  const TemporaryDirectory directory;
  const std::string xml = (directory.path() / "node.xml").string();
  if (std::system(("lstopo-no-graphics --input 'pack:2 numa:2 core:3 pu:2(indexes=0,12,1,13,2,14,"
                   "3,15,4,16,5,17,6,18,7,19,8,20,9,21,10,22,11,23)' --of xml " +
                   xml + " >/dev/null 2>&1")
                      .c_str()) != 0)
    GTEST_SKIP() << "lstopo is not installed";
  Topology node;
  try {
    node = load_topology(xml);
  } catch (const UserError& error) {
    ASSERT_THAT(error.what(), HasSubstr("built without"));
    GTEST_SKIP() << "built without hwloc";
  }
  EXPECT_EQ(to_lines(node),
            (std::vector<std::string>{
                "numa 0: cores 0-2; threads 12-14", "numa 1: cores 3-5; threads 15-17",
                "numa 2: cores 6-8; threads 18-20", "numa 3: cores 9-11; threads 21-23"}));
  EXPECT_FALSE(topology_of_this_machine().cores().empty());
  directory.write("bad.xml", "<?xml version=\"1.0\"?>\n<topology><object");
  EXPECT_THAT(user_error_of([&] { load_topology(directory.path() / "bad.xml"); }),
              HasSubstr("bad.xml is no topology"));
}

// A made-up node: a GPU below each package, and the graphics chip of a console.
TEST(Topologies, HwlocXmlWithGpus) {
  Topology node;
  try {
    node = recorded("two-gpus.xml");
  } catch (const UserError& error) {
    ASSERT_THAT(error.what(), HasSubstr("built without"));
    GTEST_SKIP() << "built without hwloc";
  }
  EXPECT_EQ(to_lines(node),
            (std::vector<std::string>{"numa 0: cores 0-1; gpus 1", "numa 1: cores 2-3; gpus 0"}));
}

}  // namespace
}  // namespace kintsugi
