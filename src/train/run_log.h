#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "train/goodput_log.h"
#include "train/stragglers.h"

namespace kintsugi {

// The metrics of one step.
struct StepRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;                 // positions since the start of the run, padding included
  std::int64_t targets = 0;                // of this step: tokens with a loss
  std::optional<std::int64_t> batch = {};  // sequences of this step; only with a batch ramp
  double loss = 0;
  std::optional<double> z_loss = {};  // only with train.z_loss
  double gradient_norm = 0;
  std::string skipped = {};  // why the update was not applied: "not finite" or "outlier"
  double lr = 0;
  double loss_scale = 1;
  double step_time_s = 0;
  double data_wait_s = 0;  // part of step_time_s spent waiting for the next batch
  // Only with several ranks, measured on rank 0: time with communication in flight, and time in
  // which the step waited for it.
  std::optional<double> comm_busy_s = {}, comm_wait_s = {};
  std::optional<std::int64_t> comm_bytes = {};  // sent by rank 0
  std::optional<Straggler> straggler = {};      // now and then, with several ranks
  double tokens_per_s = 0;
  std::optional<double> mfu_causal = {}, mfu_full = {};  // empty: the peak is unknown
  std::string stage = {};                                // empty: the run has no stages
  std::uint64_t memory_bytes = 0;
  // Joules of this step, the mean power since the last step; empty: not metered.
  std::optional<double> energy_j = {}, energy_gpu_j = {}, energy_node_j = {}, power_w = {};
  std::string energy_scope = {};  // the level of energy_j and power_w: "node", "gpu" or "cpu"
  std::optional<ByLevel<double>> energy_since_launch_j = {};  // of this attempt
  std::optional<double> valid_loss = {};  // nats per token
  std::optional<double> valid_bits_per_byte = {};
  struct Valid {
    std::string name;
    double loss = 0;
    std::optional<double> bits_per_byte;
  };
  std::vector<Valid> valid = {};  // one entry per validation set
};

// A rank whose failure ended the run.
struct FailedRank {
  int rank = 0;
  std::string node = {};
  int exit_code = 1;
  std::string message = {};
};

// What a run does, or how it ended.
struct RunState {
  std::string state = "running";  // or finished, stopped, diverged, failed
  std::optional<int> exit_code = {};
  std::string reason = {};  // why it stopped or failed, in a word or two
  std::string message = {};
};

// Writes metrics.jsonl (one object per line and step, complete lines only, appended to after a
// restart; `seq` counts records), status.json (replaced atomically) and goodput.jsonl.
class RunLog {
 public:
  RunLog(const std::filesystem::path& directory, std::int64_t total_steps, AttemptClock clock);

  // `saving`: a save is under way. If it has filled the disk, the line is written later: a save
  // that fails removes its files. Otherwise an error is thrown.
  void record(const StepRecord& record, bool saving = false);
  void flush();  // writes the lines that could not be written
  void status(const RunState& state, const StepRecord& last, std::optional<double> valid_loss,
              double eta_s, const std::string& checkpoint) noexcept;
  // Writes the last status again with the state "failed"; later calls of status() write nothing.
  // Thread-safe.
  void fail(const FailedRank& failed) noexcept;
  GoodputLog& goodput() { return *goodput_; }

 private:
  void write_status(const std::string& text, bool last) noexcept;

  std::mutex mutex_;    // guards status_, failed_ and status_lost_
  std::string status_;  // last status, as JSON
  bool failed_ = false, status_lost_ = false;
  std::filesystem::path directory_;
  std::int64_t total_steps_;
  std::int64_t sequence_ = 0;
  std::optional<GoodputLog> goodput_;
  std::optional<Straggler> straggler_;  // the last one that was recorded
  std::string unwritten_;               // lines of metrics.jsonl
};

}  // namespace kintsugi
