// GPUs of AMD on made-up nodes: found without HIP, judged without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "backend/cpu/cpu_backend_impl.h"
#include "energy/sysfs_tree.h"
#include "launch/doctor/doctor.h"
#include "support/paths.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kBuses[] = {0xc1, 0xc6, 0xc9, 0xce, 0xd1, 0xd6, 0xd9, 0xde};  // of a node of LUMI-G
constexpr int kNuma[] = {3, 3, 1, 1, 0, 0, 2, 2};

std::string address(int gpu) { return fmt::format("0000:{:x}:00.0", kBuses[gpu]); }

class AmdNode : public testing::Test {
 protected:
  void add_gpu(int bus, const std::string& device, int numa,
               const std::string& kind = "0x038000") const {
    const std::string folder = fmt::format("sys/bus/pci/devices/0000:{:x}:00.0/", bus);
    tree_.write(folder + "vendor", "0x1002\n");
    tree_.write(folder + "device", device + "\n");
    tree_.write(folder + "class", kind + "\n");
    tree_.write(folder + "numa_node", fmt::format("{}\n", numa));
  }
  // As the compute driver writes it; the CPU is its node 0.
  void add_to_driver(int node, int bus, int target, int simds) const {
    tree_.write(fmt::format("sys/class/kfd/kfd/topology/nodes/{}/properties", node),
                fmt::format("cpu_cores_count 0\nsimd_count {}\nsimd_per_cu 4\nvendor_id 4098\n"
                            "gfx_target_version {}\nlocation_id {}\ndomain 0\n"
                            "unique_id 18446744073709551615\n",
                            simds, target, bus << 8));
  }
  void add_mi250x() const {
    tree_.write("sys/class/kfd/kfd/topology/nodes/0/properties",
                "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\nlocation_id 0\n");
    for (int i = 0; i < 8; ++i) {
      add_gpu(kBuses[i], "0x7408", kNuma[i]);
      add_to_driver(i + 4, kBuses[i], 90010, 440);
    }
    tree_.write("dev/kfd", "");
  }
  void add_library(const std::string& path) const {
    fs::create_directories((tree_.root() / path).parent_path());
    fs::copy_file(fake_library("amdsmi"), tree_.root() / path);
  }
  void add_rocm(const std::string& version) const {
    for (const char* name : {"libamdhip64", "libhipblaslt", "librocblas", "librccl"})
      add_library(fmt::format("opt/rocm/lib/{}.so", name));
    tree_.write("opt/rocm/.info/version", version + "\n");
  }
  void add_slingshot() const { tree_.make_directory("sys/class/cxi/cxi0"); }

  AmdFacts measure(bool node = true) const {
    return measure_amd(
        node,
        [this](const std::string& name) -> std::optional<std::string> {
          const auto at = environment_.find(name);
          if (at == environment_.end()) return {};
          return at->second;
        },
        tree_.root());
  }
  // Of one node with `ranks` ranks on its first GPUs.
  Findings judge(int ranks = 1, const std::string& undriven = "") const {
    std::vector<RankFacts> all(static_cast<std::size_t>(ranks));
    for (int i = 0; i < ranks; ++i) {
      RankFacts& rank = all[static_cast<std::size_t>(i)];
      rank.rank = i;
      rank.node = "n0";
      rank.binding.gpu = address(i);
      rank.amd = measure(i == 0);
    }
    return judge_amd(all, undriven);
  }
  static std::vector<std::string> warnings(const Findings& findings) {
    std::vector<std::string> texts;
    for (const Finding& finding : findings)
      if (finding.severity == Severity::Warning) texts.push_back(finding.text);
    return texts;
  }

  SysfsTree tree_;
  std::map<std::string, std::string> environment_;
};

TEST_F(AmdNode, WithoutGpusHasNoFacts) {
  add_rocm("6.2.4");
  add_gpu(0x03, "0x1638", 0, "0x030000");  // the screen of a laptop
  const AmdFacts facts = measure();
  EXPECT_THAT(facts.gpus, IsEmpty());
  EXPECT_THAT(facts.libraries, IsEmpty()) << "nothing is opened";
  EXPECT_THAT(judge(), IsEmpty());
}

TEST_F(AmdNode, EightGcdsAreFourModules) {
  add_mi250x();
  add_rocm("6.2.4-134");
  const AmdFacts facts = measure();
  ASSERT_EQ(facts.gpus.size(), 8u);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(facts.gpus[static_cast<std::size_t>(i)], (AmdGpu{.pci = address(i),
                                                               .name = "MI250X",
                                                               .target = "gfx90a",
                                                               .compute_units = 110,
                                                               .module = i / 2}));
  EXPECT_THAT(facts.usable, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(facts.rocm, "6.2.4");
  const Findings findings = judge(8);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::Note);
  EXPECT_EQ(findings[0].text,
            "n0: 8 GCDs of 4 MI250X modules, gfx90a, 110 compute units each; ROCm 6.2.4; opens "
            "libamdhip64, libhipblaslt, librocblas, librccl");
}

TEST_F(AmdNode, AnMi300xIsOneGpu) {
  for (int i = 0; i < 2; ++i) {
    add_gpu(kBuses[i], "0x74a1", 0, "0x120000");
    add_to_driver(i, kBuses[i], 90402, 1216);
  }
  tree_.write("dev/kfd", "");
  add_rocm("7.0.2");
  EXPECT_EQ(measure().gpus[1].target, "gfx942");
  EXPECT_NE(measure().gpus[0].module, measure().gpus[1].module);
  const Findings findings = judge(1);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].text, HasSubstr("n0: 2 MI300X, gfx942, 304 compute units each; ROCm 7"));
}

TEST_F(AmdNode, FactsAreReadBack) {
  add_mi250x();
  add_slingshot();
  RankFacts rank;
  rank.amd = measure();
  const AmdFacts read = facts_of(to_json_text(rank)).amd;
  EXPECT_EQ(read.gpus, rank.amd.gpus);
  EXPECT_EQ(read.usable, rank.amd.usable);
  EXPECT_EQ(read.libraries, rank.amd.libraries);
}

TEST_F(AmdNode, EachMissingLibraryHasItsAdvice) {
  add_mi250x();
  add_slingshot();
  environment_["NCCL_NET_PLUGIN"] = "";
  const std::vector<std::string> lines = warnings(judge(8));
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("n0: libamdhip64.so is not installed"),
                                       HasSubstr("LD_LIBRARY_PATH")),
                                 AllOf(HasSubstr("libhipblaslt.so"), HasSubstr("rocBLAS alone")),
                                 AllOf(HasSubstr("librocblas.so"), HasSubstr("install rocBLAS")),
                                 AllOf(HasSubstr("librccl.so"), HasSubstr("install RCCL"))));
  for (const std::string& line : lines) EXPECT_THAT(line, Not(HasSubstr("\n")));
}

// The plug-in matters between nodes, and only with network cards that RCCL does not know.
TEST_F(AmdNode, SlingshotNeedsThePlugin) {
  add_mi250x();
  add_rocm("6.2.4");
  EXPECT_EQ(measure().libraries.size(), 4u);
  add_slingshot();
  ASSERT_EQ(measure().libraries.size(), 5u);
  EXPECT_THAT(warnings(judge(8)), IsEmpty()) << "one node";
  std::vector<RankFacts> two(2);
  for (int i = 0; i < 2; ++i) {
    two[static_cast<std::size_t>(i)].rank = i;
    two[static_cast<std::size_t>(i)].node = i == 0 ? "n0" : "n1";
    two[static_cast<std::size_t>(i)].amd = measure();
  }
  EXPECT_THAT(warnings(judge_amd(two, "")),
              ElementsAre(AllOf(HasSubstr("n0 and 1 more node: librccl-net.so is not installed"),
                                HasSubstr("TCP"), HasSubstr("aws-ofi-nccl 1.19.2"))));
  add_library("usr/lib64/libnccl-net.so");
  EXPECT_EQ(measure().libraries.back().problem, "");
  environment_["NCCL_NET_PLUGIN"] = (tree_.root() / "plug/librccl-net.so").string();
  EXPECT_NE(measure().libraries.back().problem, "");
  add_library("plug/librccl-net.so");
  EXPECT_EQ(measure().libraries.back().problem, "");
}

TEST_F(AmdNode, AnOldRocmAndAnUnknownTargetAreNamed) {
  add_gpu(kBuses[0], "0x738c", 0);
  add_to_driver(1, kBuses[0], 90008, 480);
  tree_.write("dev/kfd", "");
  add_rocm("5.1.3-66");
  EXPECT_THAT(
      warnings(judge()),
      ElementsAre("n0: this program has no code for gfx908 (MI100), only for gfx90a and gfx942: it "
                  "cannot use these GPUs",
                  "n0: ROCm 5.1.3 is older than 5.2: load a newer one"));
  tree_.write("opt/rocm/.info/version", "5.2.0\n");
  EXPECT_EQ(warnings(judge()).size(), 1u);
  tree_.write("opt/rocm/.info/version", "10.0.1\n");
  EXPECT_EQ(warnings(judge()).size(), 1u);
}

// Distributions install HIP without the folder of ROCm; its file has the version.
TEST_F(AmdNode, TheVersionMayBeInTheNameOfHip) {
  add_mi250x();
  add_library("usr/lib64/libamdhip64.so.5.2.21153");
  fs::create_symlink("libamdhip64.so.5.2.21153", tree_.root() / "usr/lib64/libamdhip64.so.5");
  EXPECT_EQ(measure().rocm, "5.2");
}

TEST_F(AmdNode, AProgramWithoutHipSaysSo) {
  add_mi250x();
  add_rocm("6.2.4");
  EXPECT_THAT(warnings(judge(8, "it was built without HIP")),
              ElementsAre("n0: this program cannot use the GPUs: it was built without HIP"));
}

TEST_F(AmdNode, TheDriverMustBeOpen) {
  add_mi250x();
  add_rocm("6.2.4");
  tree_.remove("dev/kfd");
  EXPECT_THAT(warnings(judge(8)),
              ElementsAre(AllOf(HasSubstr("/dev/kfd: No such file"), HasSubstr("--rocm"))));
}

// Four ranks per node, as if a module were one GPU: half of the machine is idle.
TEST_F(AmdNode, ARankOnAWholeModuleWastesOneGcd) {
  add_mi250x();
  add_rocm("6.2.4");
  std::vector<RankFacts> ranks(4);
  for (int i = 0; i < 4; ++i) {
    RankFacts& rank = ranks[static_cast<std::size_t>(i)];
    rank.rank = i;
    rank.node = "n0";
    rank.binding.gpu = address(2 * i);
    rank.amd = measure(i == 0);
  }
  EXPECT_THAT(warnings(judge_amd(ranks, "")),
              ElementsAre("n0: no rank uses GCDs 0000:c6:00.0, 0000:ce:00.0, 0000:d6:00.0, "
                          "0000:de:00.0, though one uses the other GCD of the module: start one "
                          "rank per GCD, 8 on a node"));
  // Whole modules that nobody uses are no mistake.
  EXPECT_THAT(warnings(judge(2)), IsEmpty());
  // One process is a trial.
  EXPECT_THAT(warnings(judge(1)), IsEmpty());
  EXPECT_EQ(judge(1).size(), 2u);
}

// Ranks on CPU cores of such a node.
TEST_F(AmdNode, TheDoctorReportsThem) {
  add_mi250x();
  add_rocm("6.2.4");
  run_ranks(2, [&](World& world) {
    CpuBackend backend(1);
    DoctorOptions options{.node = "n0", .all_reduce = false, .root = tree_.root()};
    options.device = {.size = 16, .memory_bytes = 1 << 12};
    options.links = {.inside_nodes = false, .between_nodes = false};
    options.undriven_amd = "it was built without HIP";
    const Diagnosis diagnosis = diagnose(world, world, backend, options);
    if (world.rank() > 0) return;
    EXPECT_THAT(report_text(diagnosis, options),
                AllOf(HasSubstr("warning: amd: n0: this program cannot use the GPUs: it was built"),
                      HasSubstr("note: amd: n0: 8 GCDs of 4 MI250X modules")));
    EXPECT_THAT(report_json(diagnosis), HasSubstr("\"gfx90a\""));
  });
}

// A GPU of another job: its properties cannot be read.
TEST_F(AmdNode, GcdsOfOtherJobsAreNotIdle) {
  add_mi250x();
  add_rocm("6.2.4");
  tree_.remove("sys/class/kfd/kfd/topology/nodes/5/properties");  // GCD 1
  EXPECT_THAT(measure().usable, ElementsAre(0, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(judge(1).size(), 1u);
}

TEST_F(AmdNode, VariablesThatChooseTwiceAreNamed) {
  add_mi250x();
  add_rocm("6.2.4");
  environment_ = {{"ROCR_VISIBLE_DEVICES", "3"}, {"HIP_VISIBLE_DEVICES", "3"}};
  EXPECT_THAT(warnings(judge(8)),
              ElementsAre(HasSubstr("HIP_VISIBLE_DEVICES=3 chooses among the GPUs that "
                                    "ROCR_VISIBLE_DEVICES=3 leaves, which are fewer: unset")));
  environment_ = {{"ROCR_VISIBLE_DEVICES", "4,5,6,7"}, {"CUDA_VISIBLE_DEVICES", "0,1,2,3"}};
  EXPECT_THAT(warnings(judge(8)), IsEmpty());
  environment_ = {{"HIP_VISIBLE_DEVICES", "3"}};
  EXPECT_THAT(warnings(judge(8)), IsEmpty());
}

}  // namespace
}  // namespace kintsugi
