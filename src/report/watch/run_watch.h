#pragma once

#include <filesystem>
#include <vector>

#include "report/runs/run_index.h"
#include "report/runs/series_cache.h"
#include "report/watch/watched_run.h"

namespace kintsugi {

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
