#include "support/fault_runs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>  // small_run.h needs it
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "support/campaign_faults.h"
#include "support/fault_tools.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/folder.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr int kFaultSteps = 600, kFaultSaves = 20;
constexpr double kPatience_s = 300;  // for one run, with all its restarts, of which one may hang
constexpr std::size_t kSmallDisk = std::size_t{48} << 20;

struct TooLate : Failure {
  TooLate() : Failure("the run was over before the fault: the machine is too busy") {}
};

// Completed steps; parsing the lines would take the cores from the run.
std::size_t steps_of(const fs::path& run) {
  const std::string metrics = content(run / "metrics.jsonl");
  return static_cast<std::size_t>(std::count(metrics.begin(), metrics.end(), '\n'));
}

std::string state_of(const fs::path& run) {
  const Json json = Json::parse(content(run / "status.json"), nullptr, false);
  return json.is_object() ? json.value("state", "") : "";
}

std::vector<float> floats_of(const SafetensorsModel& model, const std::string& name) {
  const std::span<const std::byte> bytes = model.find(name).bytes();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace

const char* to_string(Fault fault) {
  switch (fault) {
    case Fault::KillRank:
      return "a rank is killed";
    case Fault::StopRank:
      return "a rank is stopped";
    case Fault::KillSupervisor:
      return "the supervisor is killed";
    case Fault::FillDisk:
      return "the disk is full";
    case Fault::TruncateNewest:
      return "the newest checkpoint is truncated";
    case Fault::FlipBit:
      return "a bit of the newest checkpoint is flipped";
    case Fault::KillNode:
      return "a node dies, with a spare";
    case Fault::KillBatchNode:
      return "the node of the supervisor dies";
    case Fault::LoseNode:
      return "a node dies, without a spare";
    case Fault::Requeue:
      return "the job is requeued";
    case Fault::Campaign:
      return "a campaign is disturbed";
  }
  return "";
}

bool needs_slurm(Fault fault) {
  return fault == Fault::KillNode || fault == Fault::KillBatchNode || fault == Fault::LoseNode ||
         fault == Fault::Requeue || fault == Fault::Campaign;
}

bool needs_root(Fault fault) { return fault == Fault::FillDisk; }

// ---- the cluster

bool SlurmCluster::available() {
  return run_shell("command -v slurmctld slurmd munged srun sbatch > /dev/null 2>&1") == 0;
}

SlurmCluster::SlurmCluster(int nodes) {
  std::string name = (fs::temp_directory_path() / "kintsugi-slurm-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) failure("no temporary directory");
  directory_ = name;
  const fs::path variables = directory_ / "variables";
  if (run_shell(fmt::format("{}/tests/slurm/cluster.sh start {} {} > {} 2> {}/start.log",
                            source_directory(), name, nodes, variables.string(), name)) != 0)
    failure("the Slurm cluster does not start: {}", content(directory_ / "start.log"));
  std::istringstream lines(content(variables));
  for (std::string line; std::getline(lines, line);)
    if (const std::size_t equals = line.find('='); equals != std::string::npos)
      setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 1);
}

SlurmCluster::~SlurmCluster() {
  run_shell(fmt::format("{}/tests/slurm/cluster.sh stop {} > /dev/null 2>&1", source_directory(),
                        directory_.string()));
  for (const char* name :
       {"SLURM_CONF", "OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_btl_tcp_if_include"})
    unsetenv(name);
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

void SlurmCluster::kill_node(const std::string& node) {
  run_shell(fmt::format("{}/tests/slurm/cluster.sh kill {} {} 2> /dev/null", source_directory(),
                        directory_.string(), node));
}

void SlurmCluster::revive_node(const std::string& node) {
  run_shell(fmt::format("{}/tests/slurm/cluster.sh revive {} {} 2> /dev/null", source_directory(),
                        directory_.string(), node));
}

// ---- the runs

struct FaultRuns::Run {
  Fault fault;
  bool slurm;
  fs::path directory = {}, config = {}, output = {};
  int ranks = 2;
  int killed_node = 0;  // 0: none
  pid_t launcher = 0;   // of a local run
  bool mounted = false;

  std::vector<Process> rank_processes() const {
    return processes_with({"train", (directory / "launch/config.yaml").string()});
  }
  std::vector<Process> supervisors() const {
    return processes_with({"launch", "--supervise", directory.string()});
  }
  std::vector<Process> deputies() const {
    return processes_with({"launch", "--deputy", directory.string()});
  }
  bool met_full_disk() const { return diagnosis().find("No space left") != std::string::npos; }
  std::string diagnosis() const {
    std::string text = fmt::format("{}, {}: ", slurm ? "Slurm" : "mpirun", to_string(fault));
    for (const fs::path& file : {output, directory / "log.txt", directory / "status.json",
                                 directory / "launch/attempts.jsonl"})
      text += fmt::format("\n--- {}\n{}", file.string(), content(file));
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory / "launch", error))
      if (entry.path().extension() == ".out")
        text += fmt::format("\n--- {}\n{}", entry.path().string(), content(entry.path()));
    return text;
  }
};

FaultRuns::FaultRuns(std::uint64_t seed) : random_(seed) {
  corpus_ = directory_.write("corpus.txt", small_corpus(400));
  directory_.write("machine.yaml",
                   "name: test\nnodes: 4\nnode: {gpus: 1, link_gb_s: 5}\nnetwork: {gb_s: 1}\n"
                   "gpu: {bf16_tflops: 0.1, fp32_tflops: 0.1, memory_gb: 4, memory_gb_s: 20, "
                   "tdp_w: 20}\nlaunch: {gpu_request: none, mpi: pmix}\n");
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"})
    setenv(name, "1", 1);
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
}

FaultRuns::~FaultRuns() = default;

SlurmCluster& FaultRuns::cluster() {
  if (!cluster_) cluster_ = std::make_unique<SlurmCluster>();
  return *cluster_;
}

std::string FaultRuns::config(const fs::path& run) const {
  std::string text =
      small_config(corpus_.string(), run.string(),
                   fmt::format("steps: {}, checkpoint_every: {}, eval_every: 0, dropout: 0.1",
                               kFaultSteps, kFaultSaves),
                   "device: cpu\nthreads: 1\nlayout: {zero: 1}\ncomm: {deterministic: true}\n");
  const auto set = [&](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  set("keep_checkpoints: 0", "keep_checkpoints: 3");
  set("global: 6, micro: 2", "global: 12, micro: 1");
  return text;
}

// The undisturbed run. Ranks of one layout compute the same bits wherever they are.
fs::path FaultRuns::reference(int ranks) {
  const fs::path run = directory_ / fmt::format("whole-{}", ranks);
  if (fs::exists(run)) return run;
  const std::string file = directory_.write(run.filename().string() + ".yaml", config(run));
  if (run_shell(fmt::format("{} launch {} --local --ranks {} > {}.txt 2>&1", kintsugi_binary(),
                            file, ranks, run.string())) != 0)
    failure("the undisturbed run failed: {}", content(run.string() + ".txt"));
  return run;
}

void FaultRuns::start(Run& run) {
  run.directory = directory_ / fmt::format("run-{}", ++count_);
  run.output = run.directory.string() + ".txt";
  run.config = directory_.write(run.directory.filename().string() + ".yaml", config(run.directory));
  if (run.fault == Fault::FillDisk) {
    fs::create_directory(run.directory);
    run.mounted = ::mount("tmpfs", run.directory.c_str(), "tmpfs", 0,
                          fmt::format("size={}", kSmallDisk).c_str()) == 0;
    if (!run.mounted) failure("cannot mount a small file system: {}", std::strerror(errno));
  }
  if (!run.slurm) {
    run.launcher = fork();
    if (run.launcher != 0) return;
    setpgid(0, 0);
    const int file = open(run.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execl(kintsugi_binary().c_str(), "kintsugi", "launch", run.config.c_str(), "--local", "--ranks",
          std::to_string(run.ranks).c_str(), nullptr);
    _exit(127);
  }
  cluster();
  const bool lose = run.fault == Fault::LoseNode;
  if (run_shell(fmt::format("{} launch {} --machine {} --nodes {} {} --ranks-per-node 1 --time "
                            "20min > {} 2>&1",
                            kintsugi_binary(), run.config.string(),
                            (directory_ / "machine.yaml").string(), run.ranks,
                            lose ? "--min-nodes 1" : "--spare-nodes 1", run.output.string())) != 0)
    failure("the job was not submitted: {}", content(run.output));
}

// Files of the newest checkpoint: its weights or the optimizer's state.
void FaultRuns::damage_newest(const Run& run, bool truncate) {
  const auto list = list_checkpoints(run.directory / "checkpoints");
  if (list.empty()) failure("no checkpoint to damage; {}", run.diagnosis());
  const fs::path file = random_() % 2 == 0 ? list.back().model() / "model.safetensors"
                                           : list.back().state() / "optimizer.safetensors";
  const auto size = fs::file_size(file);
  if (truncate) return fs::resize_file(file, random_() % size);
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(random_() % size);
  stream.seekg(at);
  const int byte = stream.get();
  stream.seekp(at);
  stream.put(static_cast<char>(byte ^ (1 << (random_() % 8))));
}

void FaultRuns::disturb(Run& run, FaultReport& report) {
  // A random step, not only the moments after saves. Two checkpoints exist: if the only one is
  // damaged, the user must decide.
  const auto step = static_cast<std::size_t>(2 * kFaultSaves + 10 + random_() % (kFaultSteps / 2));
  if (!wait_until([&] { return steps_of(run.directory) >= step; }, kPatience_s))
    failure("the run did not reach step {}; {}", step, run.diagnosis());
  if (!wait_until([&] { return list_checkpoints(run.directory / "checkpoints").size() >= 2; },
                  kPatience_s))
    failure("the run has no two checkpoints; {}", run.diagnosis());
  if (run.fault == Fault::KillBatchNode && !wait_until([&] { return !run.deputies().empty(); }, 10))
    failure("the supervisor has no deputy; {}", run.diagnosis());
  std::this_thread::sleep_for(std::chrono::microseconds(random_() % 30'000));
  // On a busy machine this process may wait longer than the run takes.
  if (steps_of(run.directory) > kFaultSteps - 5 * kFaultSaves) throw TooLate();
  const std::vector<Process> ranks = run.rank_processes();
  const auto victim = [&]() -> const Process& {
    if (ranks.empty()) failure("no rank was found; {}", run.diagnosis());
    return ranks[random_() % ranks.size()];
  };
  report.what = fmt::format("after step {}", step);
  switch (run.fault) {
    case Fault::KillRank:
    case Fault::TruncateNewest:
    case Fault::FlipBit:
      ::kill(victim().id, SIGKILL);
      break;
    case Fault::StopRank:
      ::kill(victim().id, SIGSTOP);
      break;
    case Fault::KillSupervisor: {
      const auto supervisors = run.supervisors();
      if (supervisors.empty()) failure("no supervisor was found; {}", run.diagnosis());
      for (const Process& process : supervisors) ::kill(process.id, SIGKILL);
      break;
    }
    case Fault::FillDisk: {
      const fs::path ballast = run.directory / "ballast";
      // As much as fits, again and again: old checkpoints are removed meanwhile.
      const auto waits = [&] {
        return !run.met_full_disk() && state_of(run.directory) == "running";
      };
      for (int i = 0; i < 15 || (i < 100 && waits()); ++i) {
        std::ofstream(ballast, std::ios::app) << std::string(kSmallDisk, 'x');
        std::this_thread::sleep_for(milliseconds(100));
      }
      fs::remove(ballast);
      break;
    }
    case Fault::KillNode:
    case Fault::KillBatchNode:
    case Fault::LoseNode: {
      const bool first = run.fault == Fault::KillBatchNode;  // rank 0 is beside the batch script
      std::string node;
      for (const Process& process : ranks)
        if ((process.variable("SLURM_PROCID") == "0") == first)
          node = process.variable("SLURMD_NODENAME");
      if (node.empty()) failure("no rank was found; {}", run.diagnosis());
      run.killed_node = std::atoi(node.c_str() + 1);
      report.what += " on node " + node;
      cluster().kill_node(node);
      break;
    }
    case Fault::Requeue:
      run_shell(fmt::format("scontrol requeue $(squeue -h -o %A -n {}) > /dev/null",
                            run.directory.filename().string()));
      break;
    case Fault::Campaign:  // it has a trial of its own
      break;
  }
  if (run.fault == Fault::TruncateNewest || run.fault == Fault::FlipBit)
    damage_newest(run, run.fault == Fault::TruncateNewest);
}

void FaultRuns::wait_until_finished(const Run& run) {
  const fs::path code = run.directory / "launch/exit_code";
  if (!wait_until([&] { return !content(code).empty(); }, kPatience_s))
    failure("the run did not end within {} s; {}", kPatience_s, run.diagnosis());
  if (std::stoi(content(code)) != 0 || state_of(run.directory) != "finished")
    failure("the run ended with exit code {}; {}", content(code), run.diagnosis());
}

void FaultRuns::compare(const Run& run) {
  const fs::path expected = reference(run.ranks) / "checkpoints";
  const fs::path found = run.directory / "checkpoints";
  const std::string name = checkpoint_name(kFaultSteps);
  if (run.fault != Fault::LoseNode) {
    for (const std::string& file : {name + "/model.safetensors", name + "/trainer.json",
                                    "state/" + name + "/optimizer.safetensors"})
      if (content(found / file) != content(expected / file))
        failure("{} differs from that of the undisturbed run; {}", file, run.diagnosis());
    return;
  }
  const SafetensorsModel ours(found / name), theirs(expected / name);
  for (const std::string& tensor : theirs.names()) {
    const std::vector<float> a = floats_of(ours, tensor), b = floats_of(theirs, tensor);
    if (a.size() != b.size()) failure("{} has another size", tensor);
    for (std::size_t i = 0; i < b.size(); ++i)
      if (std::abs(a[i] - b[i]) > 1e-3f * std::max(1.0f, std::abs(b[i])))
        failure("{} differs: {} instead of {}; {}", tensor, a[i], b[i], run.diagnosis());
  }
}

void FaultRuns::read_attempts(const Run& run, double fault_s, FaultReport& report) const {
  const std::vector<Json> attempts = lines_of(run.directory / "launch/attempts.jsonl");
  report.attempts = static_cast<int>(attempts.size());
  for (std::size_t i = 0; i + 1 < attempts.size(); ++i) {
    const double ended = attempts[i].at("ended");
    if (ended < fault_s || attempts[i].at("began").get<double>() > fault_s) continue;
    report.ended_s = ended - fault_s;
    report.detected_s = attempts[i].at("noticed").is_number()
                            ? attempts[i].at("noticed").get<double>() - fault_s
                            : ended - fault_s;
    const Json& next = attempts[i + 1];
    if (next.at("first_step_s").is_number())
      report.restarted_s =
          next.at("began").get<double>() + next.at("first_step_s").get<double>() - ended;
  }
}

FaultReport FaultRuns::campaign_trial(const CampaignSize& size) {
  if (!campaigns_) campaigns_ = std::make_unique<CampaignFaults>(random_(), cluster());
  const double begin = unix_time();
  FaultReport report{.fault = Fault::Campaign, .slurm = true};
  report.what = campaigns_->trial(size);
  report.total_s = unix_time() - begin;
  return report;
}

FaultReport FaultRuns::trial(Fault fault, bool slurm) {
  if (fault == Fault::Campaign) return campaign_trial({});
  constexpr int kAttempts = 5;
  for (int attempt = 1; attempt < kAttempts; ++attempt) {
    try {
      return disturbed_run(fault, slurm);
    } catch (const TooLate&) {
    }
  }
  return disturbed_run(fault, slurm);
}

FaultReport FaultRuns::disturbed_run(Fault fault, bool slurm) {
  Run run{.fault = fault, .slurm = slurm};
  FaultReport report{.fault = fault, .slurm = slurm};
  reference(run.ranks);
  const double begin = unix_time();
  start(run);
  const auto clean_up = [&] {
    if (run.launcher > 0) {
      ::kill(-run.launcher, SIGKILL);
      waitpid(run.launcher, nullptr, 0);
    }
    if (run.killed_node > 0) cluster().revive_node(fmt::format("n{}", run.killed_node));
    if (run.mounted) ::umount2(run.directory.c_str(), MNT_DETACH);
  };
  try {
    disturb(run, report);
    const double fault_s = unix_time();
    wait_until_finished(run);
    report.total_s = unix_time() - begin;
    compare(run);
    if (fault == Fault::FillDisk && !run.met_full_disk()) throw TooLate();
    read_attempts(run, fault_s, report);
  } catch (...) {
    if (run.slurm) run_shell("scancel -u $(id -un) > /dev/null 2>&1");
    clean_up();
    throw;
  }
  clean_up();
  std::error_code ignored;
  fs::remove_all(run.directory, ignored);
  return report;
}

}  // namespace kintsugi
