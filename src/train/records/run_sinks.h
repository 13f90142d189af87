#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/documents/wandb.h"
#include "report/prometheus.h"
#include "train/records/goodput_log.h"
#include "train/records/tensorboard.h"
#include "train/step_metrics.h"

namespace kintsugi {

struct SinkOptions {
  bool tensorboard = true, prometheus = true, wandb = false;
};

// The metrics of a run for other programs: RUN_DIR/tensorboard/ (event files), RUN_DIR/wandb/ and
// RUN_DIR/metrics.prom (for the textfile collector of node_exporter). Thread-safe. Nothing here
// throws or ends a run: a failed write is one warning.
class RunSinks {
 public:
  RunSinks(const std::filesystem::path& run_dir, std::int64_t total_steps,
           std::function<double()> now_s, SinkOptions options);

  // A line of metrics.jsonl that an earlier process wrote, for counters.
  void add_earlier(const std::string& line) noexcept;
  // `line`: the record in metrics.jsonl.
  void add(const StepRecord& record, std::string_view line, GoodputLog& goodput) noexcept;
  void end(GoodputLog& goodput, int exit_code) noexcept;  // writes everything; the run is over

 private:
  void note(const StepRecord& record);
  std::vector<PrometheusMetric> prometheus_metrics(GoodputLog& log);
  void write_prometheus(GoodputLog& goodput);

  std::mutex mutex_;  // guards everything below
  SinkOptions options_;
  EventFile events_;
  WandbFile wandb_;
  std::filesystem::path file_;  // metrics.prom
  std::filesystem::path run_dir_;
  std::string run_;  // the label of all metrics
  std::int64_t total_steps_;
  std::function<double()> now_s_;
  std::vector<std::optional<double>> values_;            // for Prometheus; one entry per StepMetric
  std::vector<std::pair<MetricNames, double>> scalars_;  // the same of named scalars
  std::vector<StepRecord::Valid> valid_;                 // of the last validation
  std::vector<StepRecord::TaskMetric> tasks_;            // of the last evaluation
  GoodputAmounts seconds_;  // counters must not decrease by a rounding error
  ByLevel<double> joules_;  // the same
  double next_write_s_ = 0;
  bool running_ = true, lost_ = false;
};

}  // namespace kintsugi
