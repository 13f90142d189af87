#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/accept/cases.h"
#include "launch/accept/report.h"
#include "launch/accept/trial.h"
#include "train/config/config.h"

namespace CLI {
class App;
}

namespace kintsugi {

struct AcceptOptions {
  int ranks = 1, node_ranks = 1;  // in all, and of each node
  std::string launch = {};        // shell text before the program
  std::string machine = {};       // name or file; empty: this host, or h200
  std::string device = "auto";
  bool share_gpu = false;  // several ranks on one GPU
  double budget_s = 900;
  std::set<std::string> parts = {};      // those to do
  std::filesystem::path directory = {};  // of the trials, on all nodes
};
// In the order in which they are done.
const std::vector<std::string>& accept_parts();
void add_accept_parts(CLI::App& command, std::vector<std::string>& parts);  // --parts

// The whole test: starts the trials one after the other, and judges what they wrote.
class Acceptance {
 public:
  static constexpr const char* kCorpus = "corpus.txt";  // each test has it in its directory

  explicit Acceptance(AcceptOptions options);
  void run();
  const AcceptReport& report() const { return report_; }
  const std::optional<Machine>& machine() const { return machine_; }  // calibrated

 private:
  bool probe();  // false: it failed
  void do_parts();
  void losses(const std::vector<LossCase>& cases);
  void recovery();
  void calibrate();
  void speed();
  SpeedFacts measure_speed(const RunConfig& config, const std::string& file,
                           const std::string& name, const SpeedCase& one);
  void predict(const RunConfig& config, const SpeedCase& one, SpeedFacts& facts) const;

  bool wants(const std::string& part) const { return options_.parts.contains(part); }
  // Whether there is time for `what` of the part under way; leaves it out otherwise.
  bool has_time(const std::string& what, double needed_s);
  void leave_out(const std::string& what, const std::string& why);
  // Whether a part has a check that says something about the machine.
  bool has_result(const std::string& part) const;
  // Whether a trial says nothing about the machine, because it was ended too early.
  bool was_cut(const AcceptTrial& trial) const;
  double elapsed_s() const;
  bool own_gpus() const { return gpus_ && !options_.share_gpu; }  // every rank has its own
  AcceptTrial start(const std::string& name, int ranks, const std::vector<std::string>& arguments,
                    const std::function<void(const std::string&)>& meanwhile = {}) const;
  // Trains a configuration of `directory`, without what is already in its run directory.
  AcceptTrial train(const std::string& name, const std::string& file, int ranks,
                    const std::vector<std::string>& overrides,
                    const std::function<void(const std::string&)>& meanwhile = {}) const;
  std::filesystem::path run_of(const std::string& name) const;
  std::string write_config(const std::string& name, const std::string& sections) const;
  const RunSteps* one_rank(const LossCase& one);
  void judge_case(const LossCase& one, const std::string& name);
  void add(const AcceptChecks& checks);
  // Adds a failed check, or leaves out a trial that was cut.
  void add_failed(AcceptCheck check, const AcceptTrial& trial, const char* remedy);

  AcceptOptions options_;
  AcceptTrials trials_;
  double begin_s_ = 0;
  double launch_s_ = 0;    // how long the ranks take to start
  double expected_s_ = 0;  // of the next trial, as far as that is known
  std::string part_ = {};  // under way
  bool gpus_ = false;
  std::vector<ProbeFacts> ranks_;
  std::optional<Machine> given_, machine_;
  std::map<std::pair<bool, bool>, RunSteps> references_;  // by experts and Muon
  std::vector<LossCase> compared_;                        // with one rank
  AcceptReport report_;
};

}  // namespace kintsugi
