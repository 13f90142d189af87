#include <sched.h>
#include <sys/mount.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "launch/node_ledger.h"
#include "support/mpirun.h"
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

const std::string kMpirun = kOpenMpi + std::string("mpirun ");

class DoctorCommand : public ProgramTest {
 protected:
  static bool has_mpirun() { return std::system("command -v mpirun > /dev/null 2>&1") == 0; }
  // Two ranks can only share a core by mistake if there are two.
  static int cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  }
  static int first_core() {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    int core = 0;
    while (!CPU_ISSET(static_cast<std::size_t>(core), &set)) ++core;
    return core;
  }
  void write_run(const std::string& run) {
    directory_.write("corpus.txt", small_corpus(300));
    directory_.write("run.yaml",
                     small_config("corpus.txt", run, "steps: 2, log_every: 1, eval_every: 0"));
  }
};

TEST_F(DoctorCommand, ChecksThisProcess) {
  const Outcome outcome =
      run_kintsugi("doctor --dir . --seconds 4s --timeout 2min --json out.json");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("1 rank on 1 node"), HasSubstr("of 4 s"), HasSubstr("doctor: ")));
  const json report = json::parse(content_of("out.json"));
  EXPECT_EQ(report.at("ranks").size(), 1u);
  EXPECT_GT(report.at("ranks").at(0).at("device").at("flops_per_s"), 0);
  for (const auto& entry : fs::directory_iterator(directory_.path()))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("doctor")));
}

TEST_F(DoctorCommand, ChecksAllRanks) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  const Outcome outcome =
      run_in_shell(std::string(kMpirun) + "-np 4 $kintsugi doctor --dir . --json out.json");
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("4 ranks on 1 node"));
  const json report = json::parse(content_of("out.json"));
  ASSERT_EQ(report.at("ranks").size(), 4u);
  std::size_t pairs = 0;
  for (const json& rank : report.at("ranks")) pairs += rank.at("pairs").size();
  EXPECT_EQ(pairs, 4u) << "a ring of four";
}

// Slurm's variable makes nodes of the ranks of one host.
TEST_F(DoctorCommand, MeasuresBetweenNodes) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  std::string command = kMpirun;
  for (int node = 0; node < 3; ++node)
    command += fmt::format("{} -np 2 env SLURMD_NODENAME=nid00{} $kintsugi doctor --json out.json",
                           node == 0 ? "" : " :", node);
  const Outcome outcome = run_in_shell(command);
  EXPECT_EQ(outcome.code, 0) << outcome.error;  // slow CPU ranks are warnings
  EXPECT_THAT(outcome.out, HasSubstr("6 ranks on 3 nodes"));
  const json report = json::parse(content_of("out.json"));
  std::size_t inside = 0, between = 0;
  for (const json& rank : report.at("ranks")) {
    EXPECT_EQ(rank.at("node"), fmt::format("nid00{}", rank.at("rank").get<int>() / 2));
    for (const json& pair : rank.at("pairs")) {
      ++(pair.at("between_nodes").get<bool>() ? between : inside);
      EXPECT_GT(pair.at("bytes_per_s"), 0);
      EXPECT_EQ(pair.at("wrong"), false);
    }
  }
  EXPECT_EQ(inside, 3u) << "one pair in each node";
  EXPECT_EQ(between, 6u) << "a ring of three nodes, for each of two ranks";
}

TEST_F(DoctorCommand, RefusesTwoRanksOnOneCore) {
  if (!has_mpirun() || cores() < 2) GTEST_SKIP() << "no mpirun, or one core";
  const std::string ranks = fmt::format("{} -np 2 taskset -c {} $kintsugi ", kMpirun, first_core());
  const std::string line = fmt::format("share core {} while core", first_core());
  Outcome outcome = run_in_shell(ranks + "doctor --threads 1");
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("error: doctor: ranks 0 and 1 on"), HasSubstr(line)));
  write_run("run");
  outcome = run_in_shell(ranks + "train run.yaml --set threads=1 --set batch.micro=1");
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_THAT(outcome.error,
              AllOf(HasSubstr("error: preflight: ranks 0 and 1 on"), HasSubstr(line)));
  EXPECT_FALSE(fs::exists(directory_ / "run")) << "nothing is written";
  outcome = run_in_shell(
      ranks + "train run.yaml --set threads=1 --set batch.micro=1 --set preflight.enabled=false");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
}

TEST_F(DoctorCommand, OversubscribedRanksTrain) {
  if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
  write_run("run");
  const Outcome outcome = run_in_shell(std::string(kMpirun) +
                                       "-np 6 $kintsugi train run.yaml "
                                       "--set batch.micro=1");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("preflight"));  // its time in the line of the start-up
}

TEST_F(DoctorCommand, NamesAFullDirectory) {
  const fs::path full = directory_ / "full";
  fs::create_directory(full);
  if (::mount("none", full.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "cannot mount";
  directory_.write("full/filler", std::string(900 << 10, 'x'));
  const Outcome outcome = run_kintsugi("doctor --dir full");
  write_run("full/run");
  const Outcome train =
      has_mpirun()
          ? run_in_shell(std::string(kMpirun) +
                         "-np 2 $kintsugi train run.yaml --set threads=1 --set batch.micro=1")
          : Outcome{1, "", "No space left, preflight: the next checkpoint needs"};
  ::umount(full.c_str());
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_THAT(outcome.error,
              AllOf(HasSubstr("full/.kintsugi-doctor"), HasSubstr("No space left on device")));
  EXPECT_EQ(train.code, 1) << train.out;
  EXPECT_THAT(train.error, AllOf(HasSubstr("preflight: "), HasSubstr("the next checkpoint needs")));
}

TEST_F(DoctorCommand, NamesAnUnwritableDirectory) {
  const Outcome outcome = run_kintsugi("doctor --dir /proc/self");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("/.kintsugi-doctor-"));
}

TEST_F(DoctorCommand, KeepsTheLedger) {
  Outcome outcome = run_kintsugi("doctor --nodes --ledger nodes.json");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "nodes.json: no node is excluded\n");
  for (const char* node : {"nid001", "nid002"})
    outcome = run_kintsugi(fmt::format(
        "doctor --exclude-node {} --reason 'a broken fan' --days 3 --ledger nodes.json", node));
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("user"), HasSubstr("a broken fan"),
                                 EndsWith("nodes.json: exclude nid[001-002]\n")));
  const auto entries = NodeLedger(directory_ / "nodes.json").entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].until - entries[0].last, 3 * 86400);
  outcome = run_kintsugi("doctor --forget nid001 --ledger nodes.json");
  EXPECT_THAT(outcome.out, EndsWith("nodes.json: exclude nid002\n"));
  outcome = run_kintsugi("doctor --forget nid001 --ledger nodes.json");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.error, "error: nid001 is not listed in nodes.json\n");
  outcome = run_kintsugi("doctor --exclude-node 'a b' --ledger nodes.json");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("'a b' is not a node name"));
  outcome = run_in_shell("unset KINTSUGI_NODE_LEDGER; $kintsugi doctor --nodes");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("which node ledger?"));
  outcome = run_in_shell("KINTSUGI_NODE_LEDGER=nodes.json $kintsugi doctor --nodes");
  EXPECT_THAT(outcome.out, EndsWith("nodes.json: exclude nid002\n"));
}

}  // namespace
}  // namespace kintsugi
