#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/runs/run_summary.h"

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

}  // namespace kintsugi
