#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "energy/energy_totals.h"
#include "report/runs/run_file.h"

namespace kintsugi {

// One line of a list of runs. What is unknown is empty.
struct RunSummary {
  std::string id = {}, name = {};
  // running, finished, stopped, diverged, failed, unknown; lost: it says that it is running, but
  // shows no sign of life.
  std::string state = "unknown";
  std::string reason = {}, message = {}, stage = {}, model = {};
  bool stalled = false;  // running, but nothing was written for much longer than a step takes
  std::optional<double> step = {}, total_steps = {}, tokens = {}, loss = {}, valid_loss = {},
                        tokens_per_s = {}, mfu = {}, lr = {}, eta_s = {}, updated_s = {},
                        attempts = {}, goodput = {}, energy_j = {}, j_per_token = {}, ranks = {};
  bool operator==(const RunSummary&) const = default;
};
nlohmann::ordered_json to_json(const RunSummary& summary);
// "failed (out of memory, exit code 1)"
std::string ending_text(const std::string& state, const std::string& reason,
                        const std::string& exit_code);

// A file or directory that was left out.
struct SkippedFile {
  std::filesystem::path path;
  std::string why;
};

// This machine, as far as the state of a run depends on it. Tests have their own.
struct Surroundings {
  std::function<double()> now_s;               // since 1970
  std::string host;                            // as in layout.json
  std::function<bool(std::int64_t)> is_alive;  // a process of this machine
};
Surroundings this_machine();

// Keeps the summary of a run directory up to date. Of the files that grow only the end is read, and
// no file that has not changed.
class SummaryReader {
 public:
  explicit SummaryReader(std::filesystem::path directory) : directory_(std::move(directory)) {}

  const std::filesystem::path& directory() const { return directory_; }
  void refresh(const Surroundings& machine);
  // A status.json with a state, or metrics.jsonl and config.yaml.
  bool is_run() const { return has_status_ || has_metrics_; }
  bool may_change() const;  // its process may still write
  const RunSummary& summary() const { return summary_; }
  RunSummary& summary() { return summary_; }
  std::vector<SkippedFile> skipped() const;
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct File {
    const char* name;
    std::optional<FileStamp> stamp = {};
    std::string problem = {};
  };
  // Whether the file is another one than at the last look.
  bool has_changed(File& file) const;
  void read_status();
  void read_metrics();
  void read_layout();
  void read_energy();
  std::optional<double> energy_up_to_now() const;
  void judge(const Surroundings& machine);
  std::optional<double> goodput_until_lost();
  std::string read_small(File& file);

  std::filesystem::path directory_;
  File status_{"status.json"}, metrics_{"metrics.jsonl"}, layout_{"layout.json"},
      energy_{"energy.json"};
  bool has_status_ = false, has_metrics_ = false;
  RunSummary summary_;
  std::uint64_t bytes_read_ = 0;

  // What the files say.
  std::string claimed_state_, claimed_reason_, node_;
  std::optional<double> pid_, step_time_s_, claimed_eta_s_, claimed_goodput_;
  // Of the last record: the energy since the launch, the level of `energy_j`, and its J/token.
  ByLevel<std::optional<double>> spent_;
  std::optional<EnergyLevel> spent_level_;
  std::optional<double> spent_per_token_;
  // Of energy.json, which is older than the last record while the run trains.
  struct WrittenEnergy {
    EnergyLevel level = EnergyLevel::Node;  // the one that stands for the run
    std::optional<double> joules = {}, per_token = {};
    double attempts = 0, last_attempt_j = 0;
  };
  std::optional<WrittenEnergy> written_;
  std::optional<FileStamp> lost_stamp_;  // of metrics.jsonl, for which lost_goodput_ was counted
  std::optional<double> lost_goodput_;
};

}  // namespace kintsugi
