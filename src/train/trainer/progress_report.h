#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/metrics.h"
#include "train/trainer/energy_account.h"
#include "train/trainer/run_context.h"
#include "train/trainer/validation.h"

namespace kintsugi {

// Means over the steps since the last log line. A single step varies with its batch and with other
// load on the machine.
class StepMeans {
 public:
  void add(const StepRecord& record, std::int64_t tokens) {
    if (record.skipped.empty()) {
      loss_ += record.loss;
      norm_ += record.gradient_norm;
      scalars_.resize(record.scalars.size());
      for (std::size_t i = 0; i < scalars_.size(); ++i) scalars_[i] += record.scalars[i].value;
    } else {
      ++skipped_;
      if (record.skipped == "outlier") ++outliers_;
    }
    ++steps_;
    tokens_ += tokens;
    seconds_ += record.step_time_s;
    joules_ += record.energy_j.value_or(0);
    if (!record.energy_j) ++unmetered_;
  }
  void clear() { *this = {}; }

  std::int64_t steps() const { return steps_; }
  std::int64_t skipped() const { return skipped_; }  // without a finite loss and norm, or outliers
  std::int64_t outliers() const { return outliers_; }  // optimizer.skip_step
  double loss() const { return loss_ / applied(); }
  double gradient_norm() const { return norm_ / applied(); }
  // Of StepRecord::scalars, by its number there.
  double scalar(std::size_t i) const { return (i < scalars_.size() ? scalars_[i] : 0) / applied(); }
  double step_time_s() const { return seconds_ / static_cast<double>(steps_); }
  double tokens_per_s() const { return static_cast<double>(tokens_) / seconds_; }
  // Empty: some steps were not metered.
  std::optional<double> joules_per_token() const {
    if (unmetered_ > 0 || tokens_ == 0) return {};
    return joules_ / static_cast<double>(tokens_);
  }

 private:
  double applied() const { return static_cast<double>(steps_ - skipped_); }

  std::int64_t steps_ = 0, skipped_ = 0, outliers_ = 0, tokens_ = 0, unmetered_ = 0;
  double loss_ = 0, norm_ = 0, seconds_ = 0, joules_ = 0;
  std::vector<double> scalars_;
};

// "8 ranks = tp 2 × cp 1 × dp 4 × pp 1, ZeRO 1; …"
std::string describe_layout(const RunConfig& config, const Grid& grid);

// What a run tells about itself: at its start, in log lines and in status.json.
class ProgressReport {
 public:
  ProgressReport(RunContext& run, EnergyAccount& energy, const Validation& validation);

  void measure_peak();
  const Backend::Peak& peak() const { return peak_; }
  void announce(const std::string& tasks) const;  // `tasks` describes those of train.eval_tasks
  void estimate_duration() const;                 // for a preview
  void write_layout() const;                      // layout.json; all ranks call it

  void begin_steps();
  double run_seconds() const { return seconds_since(begin_); }  // since then
  void note_step();  // completes run.record with the utilization of the device
  void add_to_means() { means_.add(run_.record, run_.record.step_tokens); }
  const StepMeans& means() const { return means_; }  // since the last log line
  void restart() {                                   // after a rewind
    step_seconds_ = 0;
    means_.clear();
  }
  void report(bool last);
  void report_stop(bool stopped);  // after the last step of the stage, or a stop
  void write_status(const RunState& state, double eta_s) const;  // on rank 0

 private:
  using Clock = std::chrono::steady_clock;
  double eta_s() const;
  // Model FLOPs utilization. Empty once a step was faster than the measured peak.
  std::optional<double> mfu(double tokens_per_s, double flops_per_token) const;
  void check_peak();
  std::string progress_line() const;

  RunContext& run_;
  EnergyAccount& energy_;
  const Validation& validation_;
  TrainingFlops flops_;
  double later_flops_ = 0;  // of later stages, for the ETA
  Backend::Peak peak_;
  bool peak_is_known_ = true;
  StepMeans means_;
  double step_seconds_ = 0;  // time in steps only, for the ETA
  Clock::time_point begin_, last_report_;
};

}  // namespace kintsugi
