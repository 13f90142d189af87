#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/temporary_directory.h"

namespace kintsugi {

class CampaignFaults;
struct CampaignSize;

// Trains small runs with `kintsugi launch`, disturbs them, and compares their last checkpoint with
// that of an undisturbed run.

enum class Fault {
  KillRank,        // SIGKILL
  StopRank,        // SIGSTOP: it hangs
  KillSupervisor,  // SIGKILL
  FillDisk,        // during a save; there is space again later
  TruncateNewest,  // the newest checkpoint, and a rank is killed
  FlipBit,         // the same with one bit
  KillNode,        // slurmd and all processes of a node; a spare node takes its place
  KillBatchNode,   // the same of the node of the batch script and supervisor: the job is requeued
  LoseNode,        // the same without a spare: the run continues on fewer nodes
  Requeue,         // scontrol requeue
  Campaign,        // many faults in a campaign: campaign_faults.h
};
inline constexpr int kFaults = 11;
const char* to_string(Fault fault);
bool needs_slurm(Fault fault);
bool needs_root(Fault fault);  // to mount a small file system

// A Slurm cluster on this machine (tests/slurm/cluster.sh).
class SlurmCluster {
 public:
  static bool available();               // Slurm and munge are installed
  explicit SlurmCluster(int nodes = 4);  // throws Failure if it does not start
  ~SlurmCluster();
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  void kill_node(const std::string& node);
  void revive_node(const std::string& node);

 private:
  std::filesystem::path directory_;
};

struct FaultReport {
  Fault fault;
  bool slurm = false;
  int attempts = 0;                        // of the supervisor
  std::optional<double> detected_s = {};   // from the fault until the supervisor knew of it
  std::optional<double> ended_s = {};      // from the fault to the end of the attempt
  std::optional<double> restarted_s = {};  // from there to the first step of the next one
  double total_s = 0;
  std::string what = {};  // "rank 1 of 2 after step 17"
};

class FaultRuns {
 public:
  explicit FaultRuns(std::uint64_t seed);
  ~FaultRuns();

  // Throws Failure if the run does not finish by itself, or ends with other weights. Begins again
  // if the run was over before the fault.
  FaultReport trial(Fault fault, bool slurm);
  FaultReport campaign_trial(const CampaignSize& size);

 private:
  struct Run;
  FaultReport disturbed_run(Fault fault, bool slurm);
  void start(Run& run);
  void disturb(Run& run, FaultReport& report);
  void damage_newest(const Run& run, bool truncate);
  void wait_until_finished(const Run& run);
  void compare(const Run& run);
  void read_attempts(const Run& run, double fault_s, FaultReport& report) const;
  std::filesystem::path reference(int ranks);
  std::string config(const std::filesystem::path& run) const;
  SlurmCluster& cluster();

  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  std::filesystem::path corpus_;
  std::unique_ptr<SlurmCluster> cluster_;
  std::unique_ptr<CampaignFaults> campaigns_;
  int count_ = 0;
};

}  // namespace kintsugi
