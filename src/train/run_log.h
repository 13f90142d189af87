#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// Everything a step leaves behind for people and programs.
struct StepRecord {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double loss = 0;
  double gradient_norm = 0;
  double lr = 0;
  double loss_scale = 1;
  double step_time_s = 0;
  double data_wait_s = 0;  // of step_time_s: how long the step waited for the tokens of the next
  // With several ranks, on rank 0: communication under way, and the part the step waited for.
  std::optional<double> comm_busy_s = {}, comm_wait_s = {};
  std::optional<std::int64_t> comm_bytes = {};  // sent by it
  double tokens_per_s = 0;
  std::optional<double> mfu_causal = {}, mfu_full = {};  // empty: the peak is not known
  std::uint64_t memory_bytes = 0;
  std::optional<double> energy_j = {};    // empty: no counter is read
  std::optional<double> valid_loss = {};  // nats per token
  std::optional<double> valid_bits_per_byte = {};
  struct Valid {
    std::string name;
    double loss = 0;
    std::optional<double> bits_per_byte;
  };
  std::vector<Valid> valid = {};  // each set by itself
};

// metrics.jsonl (one object per step, whole lines only, append-only over restarts, `seq` counts
// records) and status.json (replaced whole).
class RunLog {
 public:
  RunLog(const std::filesystem::path& directory, std::int64_t total_steps);

  void record(const StepRecord& record);
  // state: running, finished, stopped, diverged or failed.
  void status(const std::string& state, const StepRecord& last, std::optional<double> valid_loss,
              double eta_s, const std::string& checkpoint,
              const std::string& message = "") noexcept;
  // The last status again, as failed, and none after it. From any thread.
  void fail(const std::string& message) noexcept;

 private:
  void write_status(const std::string& text, bool last) noexcept;

  std::mutex mutex_;    // of these three
  std::string status_;  // the last one, JSON
  bool failed_ = false, status_lost_ = false;
  std::filesystem::path directory_;
  std::int64_t total_steps_;
  std::int64_t sequence_ = 0;
};

}  // namespace kintsugi
