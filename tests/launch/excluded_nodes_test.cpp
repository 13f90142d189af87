// Which node is excluded after each kind of failure, with real ranks under mpirun. The supervisor
// believes to be in a Slurm job of three nodes, of which two train: mpirun starts both ranks on
// this machine, each with the name of a node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "launch/supervisor.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "train/checkpoint/folder.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

// Environment variables for the life of a test.
class Environment {
 public:
  void set(const std::string& name, const std::string& value) {
    const char* const before = std::getenv(name.c_str());
    before_.emplace(name, before == nullptr ? std::nullopt : std::optional<std::string>(before));
    setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : before_)
      value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

class ExcludedNodes : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
    fs::create_directories(run_ / "launch");
    fs::create_directory(directory_ / "bin");
    for (const char* name : {"sinfo", "squeue", "scancel", "srun"}) program(name, "exit 0");
    program("scontrol", "printf 'n0\\nn1\\nn2\\n'");
    program("on_node", fmt::format(R"sh(
excluded=,
case $1 in --exclude=*) excluded=,${{1#--exclude=}},; shift ;; esac
nodes=()
for node in n0 n1 n2; do [[ $excluded == *,$node,* ]] || nodes+=($node); done
export SLURMD_NODENAME=${{nodes[$OMPI_COMM_WORLD_RANK]}}
echo $SLURMD_NODENAME >>{0}/placed
# Node n1 sees another file.
if [ $SLURMD_NODENAME = n1 ] && [ -e {0}/original ]; then
  exec unshare --mount bash -c 'mount --bind {0}/other "$(<{0}/original)" && exec "$@"' bash "$@"
fi
exec "$@")sh",
                                   directory_.path().string()));
    environment_.set("PATH",
                     (directory_ / "bin").string() + ":" + std::string(std::getenv("PATH")));
    environment_.set("SLURM_JOB_NODELIST", "n[0-2]");
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"})
      environment_.set(name, "1");
    environment_.set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  }
  void program(const std::string& name, const std::string& commands) {
    const std::string file = directory_.write("bin/" + name, "#!/bin/bash\n" + commands + "\n");
    fs::permissions(file, fs::perms::owner_all);
  }
  JobDescription job(int steps, int save_every = 20) {
    const fs::path config = run_ / "launch/config.yaml";
    std::string text = small_config(
        corpus_, run_.string(),
        fmt::format("steps: {}, checkpoint_every: {}, eval_every: 0, max_failed_saves: 1", steps,
                    save_every),
        "device: cpu\nthreads: 1\nlayout: {zero: 1}\ncomm: {silence_s: 6, timeout_s: 7}\n");
    const std::string batch = "global: 6, micro: 2";  // longer steps
    std::ofstream(config) << text.replace(text.find(batch), batch.size(), "global: 60, micro: 1");
    return {.run_dir = run_.string(),
            .config = config.string(),
            .program = kintsugi_binary(),
            .ranks_per_node = 1,
            .nodes = 2,
            .spare_nodes = 1,
            .min_nodes = 2,
            .launcher = {"mpirun", "-np", "{ranks}", (directory_ / "bin/on_node").string(),
                         "--exclude={exclude}"}};
  }
  pid_t process_of(int rank) const {
    const std::string variable = fmt::format("OMPI_COMM_WORLD_RANK={}", rank) + '\0';
    const std::string config = "train" + std::string(1, '\0') + (run_ / "launch").string();
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      if (content_of(entry.path() / "cmdline").find(config) != std::string::npos &&
          content_of(entry.path() / "environ").find(variable) != std::string::npos)
        return std::stoi(name);
    }
    return 0;
  }
  std::size_t steps_done() const {
    std::ifstream file(run_ / "metrics.jsonl");
    std::size_t lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  // Supervises a run, disturbs this rank between its two saves, and waits for its end.
  void disturb(int rank, const std::function<void(pid_t process)>& fault) {
    const JobDescription description = job(200, 100);
    std::future<int> code = std::async(
        std::launch::async, [&] { return Supervisor(description, {.stall_s = 100}).run(); });
    while (list_checkpoints(run_ / "checkpoints").empty() || steps_done() < 110)
      if (code.wait_for(std::chrono::milliseconds(5)) == std::future_status::ready) break;
    const pid_t process = process_of(rank);
    if (process > 0) fault(process);
    EXPECT_GT(process, 0);
    EXPECT_EQ(code.get(), exit_code::kFinished);
  }
  std::vector<Json> attempts() const {
    std::ifstream file(run_ / "launch/attempts.jsonl");
    std::vector<Json> found;
    for (std::string line; std::getline(file, line);) found.push_back(Json::parse(line));
    return found;
  }
  // The first attempt failed like this, because of this rank; the second one finished without its
  // node. `trouble`: the entry of the ledger.
  void expect_excluded(int rank, const std::string& failure,
                       const std::optional<std::string>& trouble) const {
    const std::string node = fmt::format("n{}", rank);
    const std::vector<Json> tried = attempts();
    ASSERT_EQ(tried.size(), 2u);
    EXPECT_EQ(tried[0].at("failure"), failure) << tried[0];
    EXPECT_EQ(tried[0].at("rank"), rank) << tried[0];
    EXPECT_EQ(tried[0].at("node"), node) << tried[0];
    std::ifstream file(directory_ / "placed");
    Names nodes;
    for (std::string name; file >> name;) nodes.push_back(name);
    ASSERT_EQ(nodes.size(), 4u);
    std::sort(nodes.begin() + 2, nodes.end());
    EXPECT_THAT(Names(nodes.begin() + 2, nodes.end()), ElementsAre(rank == 0 ? "n1" : "n0", "n2"));
    const std::vector<LedgerEntry> entries = NodeLedger(run_ / "nodes.json").entries();
    ASSERT_EQ(entries.size(), trouble ? 1u : 0u);
    if (!trouble) return;
    EXPECT_EQ(entries[0].node, node);
    EXPECT_EQ(entries[0].kind, *trouble);
  }

  TemporaryDirectory directory_;
  fs::path run_ = directory_ / "run";
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(400));
  Environment environment_;
};

class ExcludedNodesOfRank : public ExcludedNodes, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Failures, ExcludedNodesOfRank, testing::Values(0, 1));

TEST_P(ExcludedNodesOfRank, AKilledRank) {
  disturb(GetParam(), [](pid_t process) { kill(process, SIGKILL); });
  expect_excluded(GetParam(), "lost", "lost");
}

TEST_P(ExcludedNodesOfRank, AStoppedRank) {
  disturb(GetParam(), [](pid_t process) { kill(process, SIGSTOP); });
  expect_excluded(GetParam(), "silent", "hung");
}

// Stops the main thread of a process while it computes; its other threads go on and give signs of
// life. Returns false if that is not possible here.
bool stop_main_thread(pid_t process) {
  if (ptrace(PTRACE_SEIZE, process, 0, 0) != 0) return false;
  for (int i = 0; i < 3000; ++i) {
    int status = 0;
    if (ptrace(PTRACE_INTERRUPT, process, 0, 0) != 0 ||
        waitpid(process, &status, __WALL) != process || !WIFSTOPPED(status))
      return false;
    // -1: it is in no system call, so it does not wait for another rank.
    if (content_of(fmt::format("/proc/{}/syscall", process)).starts_with("-1")) return true;
    ptrace(PTRACE_CONT, process, 0, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  return false;
}

// It makes no more calls. The other rank waits, and is not at fault.
TEST_P(ExcludedNodesOfRank, ARankThatComputesForever) {
  std::thread tracer;
  bool stopped = false;
  disturb(GetParam(), [&](pid_t process) {
    std::promise<void> done;
    tracer = std::thread([&, process] {
      stopped = stop_main_thread(process);
      done.set_value();
      if (!stopped) kill(process, SIGKILL);
      int status = 0;  // only this process can wait for it
      while (waitpid(process, &status, __WALL) == process && WIFSTOPPED(status)) {
      }
    });
    done.get_future().wait();
  });
  if (tracer.joinable()) tracer.join();
  if (!stopped) GTEST_SKIP() << "a thread of another process cannot be stopped here";
  expect_excluded(GetParam(), "stuck", "hung");
}

// Rank 1 alone cannot write its part of a checkpoint. It may be an error of the program: later jobs
// may use its node.
TEST_F(ExcludedNodes, AnErrorOfOneRank) {
  disturb(1, [](pid_t process) {
    const rlimit none{0, 0};
    EXPECT_EQ(prlimit(process, RLIMIT_FSIZE, &none, nullptr), 0);
  });
  expect_excluded(1, "error", std::nullopt);
}

class DamagedCheckpoint : public ExcludedNodes {
 protected:
  void SetUp() override {
    ExcludedNodes::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(Supervisor(job(40)).run(), exit_code::kFinished);
    for (const char* name : {"attempts.jsonl", "supervisor.json"})
      fs::remove(run_ / "launch" / name);
    fs::remove(directory_ / "placed");
    file_ = run_ / "checkpoints" / checkpoint_name(40) / "generation_config.json";
  }
  fs::path file_;
};

// Node n1 reads another content than node n0.
TEST_F(DamagedCheckpoint, AFileThatOneNodeMisreads) {
  if (std::system("unshare --mount true > /dev/null 2>&1") != 0) GTEST_SKIP() << "only root can";
  directory_.write("original", file_.string());
  directory_.write("other", "{}");
  EXPECT_EQ(Supervisor(job(60)).run(), exit_code::kFinished);
  expect_excluded(1, "misread file", std::nullopt);
  EXPECT_EQ(attempts()[0].at("file"), file_.string());
  EXPECT_THAT(list_damaged(run_ / "checkpoints"), IsEmpty());
}

// The run falls back by itself, and no node is at fault.
TEST_F(DamagedCheckpoint, AFileThatAllNodesReadAsDamaged) {
  std::ofstream(file_) << "{}";
  EXPECT_EQ(Supervisor(job(60)).run(), exit_code::kFinished);
  ASSERT_EQ(attempts().size(), 1u);
  EXPECT_TRUE(attempts()[0].at("node").is_null());
  EXPECT_THAT(list_damaged(run_ / "checkpoints"), ElementsAre(checkpoint_name(40) + ".damaged"));
  EXPECT_THAT(NodeLedger(run_ / "nodes.json").entries(), IsEmpty());
  // Without another checkpoint it ends, and names the file.
  for (const CheckpointPaths& one : list_checkpoints(run_ / "checkpoints"))
    if (one.name != checkpoint_name(60)) remove_checkpoint(one);
  const fs::path last = run_ / "checkpoints" / checkpoint_name(60) / "generation_config.json";
  std::ofstream(last) << "{}";
  EXPECT_EQ(Supervisor(job(80)).run(), exit_code::kMistake);
  ASSERT_EQ(attempts().size(), 2u);
  EXPECT_EQ(attempts()[1].at("failure"), "damaged file");
  EXPECT_EQ(attempts()[1].at("file"), last.string());
  EXPECT_TRUE(attempts()[1].at("node").is_null());
}

}  // namespace
}  // namespace kintsugi
