#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "support/fault_runs.h"
#include "support/temporary_directory.h"

namespace kintsugi {

// How large a campaign is, and how often it is disturbed. In 4 levels: a sweep, a longer run with
// the best setting, cool-downs of it, and runs that continue the best of these; then their mean.
struct CampaignSize {
  int sweep = 5, cool = 3, last = 3;
  int faults = 6;
  int runs() const { return sweep + 1 + cool + last; }
};

// Campaigns under Slurm: the budget stops one, then it is cancelled, its driver, jobs and nodes are
// killed at random moments, and the same command continues it.
class CampaignFaults {
 public:
  CampaignFaults(std::uint64_t seed, SlurmCluster& cluster);

  // Throws Failure if the campaign does not end, ends with other weights than an undisturbed one,
  // or if its budget lets begin what it must not. Returns what was done to it.
  std::string trial(const CampaignSize& size);

 private:
  struct Answer {
    int code = 0;
    std::string text = {};
  };
  struct Attempt {
    std::string task = {};
    double began_s = 0, ended_s = 0;
  };
  Answer campaign(const std::string& arguments) const;
  void write_files(const CampaignSize& size);
  std::vector<std::string> runs_of(const CampaignSize& size) const;
  void wait_for_queue() const;
  void exhaust_budget();
  void check_budget(const std::string& status, double limit_hours) const;
  std::vector<Attempt> attempts(const char* name) const;
  std::string disturb();
  std::string kill_driver();
  std::string kill_job();
  std::string kill_rank();
  std::string kill_node();
  void revive_nodes();
  void finish();
  void compare(const CampaignSize& size) const;
  std::string diagnosis() const;
  double uniform(double low, double high);

  std::mt19937_64 random_;
  SlurmCluster& cluster_;
  TemporaryDirectory directory_;
  std::filesystem::path here_;  // of the current trial
  std::vector<std::string> dead_nodes_;
  int count_ = 0;
};

}  // namespace kintsugi
