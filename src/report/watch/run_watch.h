#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/runs/run_index.h"
#include "report/runs/run_summary.h"
#include "report/runs/series_view.h"

namespace kintsugi {

// What the live view shows of one run.
struct WatchedRun {
  struct Straggler {
    std::string rank = {}, node = {};
    double ratio = 0;
  };
  struct TimeShare {
    std::string category = {};  // of goodput_categories()
    double seconds = 0;
  };

  RunSummary summary = {};
  std::optional<double> silent_s = {};  // since its last sign of life

  // Only of runs with a panel.
  std::vector<std::pair<double, double>> loss_curve = {}, valid_curve = {};  // by step
  std::vector<double> gradient_norms = {};                                   // of the last steps
  std::vector<TimeShare> time = {};
  std::optional<Straggler> straggler = {};
  std::vector<std::string> log = {};  // the last lines

  // Whether nothing more is expected from it.
  bool ended() const { return summary.state != "running"; }
  // Productive time divided by all; empty without any time.
  std::optional<double> goodput() const;
};

// Follows the runs below some folders through their files alone, so that they may belong to other
// nodes. Files that are missing or damaged for a moment leave values unknown.
class RunWatch {
 public:
  // UserError if one of the folders is no directory.
  explicit RunWatch(const std::vector<std::filesystem::path>& folders,
                    Surroundings machine = this_machine());

  // The runs as they are now: their summaries. Those that are running come first.
  std::vector<WatchedRun> look();
  // Adds curves, times and log to a run of the last look.
  void read_details(WatchedRun& run);

 private:
  Surroundings machine_;
  RunIndex index_;
  SeriesCache series_;
};

}  // namespace kintsugi
