// kintsugi launch --accept in a real Slurm on this machine, where each node has one rank.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "support/fault_runs.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class AcceptInSlurm : public ProgramTest {
 protected:
  // The report of a job, whose ranks have these variables.
  json report_of(const std::string& name, const std::string& variables,
                 const std::string& arguments) {
    directory_.write(name + ".yaml",
                     fmt::format("name: three nodes\nnodes: 3\n"
                                 "gpu: {{name: CPU, vendor: none, bf16_tflops: 0.1, memory_gb: 4, "
                                 "memory_gb_s: 10, tdp_w: 100}}\n"
                                 "node: {{gpus: 1}}\nnetwork: {{gb_s: 1}}\n"
                                 "launch: {{gpu_request: none, exclusive: false, "
                                 "environment: {{{}}}}}\n",
                                 variables));
    const Outcome submitted = run_kintsugi(fmt::format(
        "launch --accept {0} --machine {0}.yaml --parts calibrate {1}", name, arguments));
    EXPECT_EQ(submitted.code, 0) << submitted.error;
    EXPECT_THAT(submitted.out, AllOf(HasSubstr("submitted job "), HasSubstr("acceptance.html")));
    const auto path = directory_ / name / "acceptance.json";
    run_in_shell("while ! jobs=$(squeue -h) || [ -n \"$jobs\" ]; do sleep 0.1; done");
    if (std::filesystem::exists(path)) return json::parse(content_of(name + "/acceptance.json"));
    ADD_FAILURE() << "no report: " << run_in_shell("cat " + name + "-trials/launch/slurm*").out;
    return {};
  }
};

TEST_F(AcceptInSlurm, FindsPassFailAndIncomplete) {
  if (!SlurmCluster::available()) GTEST_SKIP() << "no Slurm here";
  const SlurmCluster cluster(3);
  const json passed = report_of("good", "", "--nodes 2 --time 5min");
  EXPECT_EQ(passed["verdict"], "pass") << passed;
  EXPECT_EQ(passed["ranks"], 2);
  EXPECT_EQ(passed["nodes"], 2);
  EXPECT_THAT(passed["launch"].get<std::string>(), HasSubstr("srun"));
  // Rank 2 sends at a fraction of the others' rate. Where other programs use the cores, a device
  // may be slow too.
  const json failed =
      report_of("slow", "LD_PRELOAD: " + fake_library("slow_link") + ", KINTSUGI_SLOW_RANK: 2",
                "--nodes 3 --time 5min");
  EXPECT_EQ(failed["verdict"], "FAIL") << failed;
  int links = 0;
  for (const json& check : failed["checks"]) {
    if (check["verdict"] != "FAIL" || check["name"] != "links") continue;
    ++links;
    EXPECT_EQ(check["ranks"], json({2}));
    EXPECT_EQ(check["nodes"], json({"n3"}));
    EXPECT_THAT(check["remedy"].get<std::string>(), HasSubstr("leave the node out"));
  }
  EXPECT_EQ(links, 1) << failed;
  // A second is not enough for the probe and a calibration. Two nodes are not compared.
  const json incomplete = report_of("short", "", "--nodes 2 --time 1s");
  EXPECT_EQ(incomplete["verdict"], "incomplete") << incomplete;
  EXPECT_FALSE(incomplete["not_complete"].empty());
}

}  // namespace
}  // namespace kintsugi
