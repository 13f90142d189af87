#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/runs/run_index.h"
#include "report/runs/series_view.h"

namespace kintsugi {

// The runs in some directories and below them, read once for a report. Files that cannot be used
// are warned of. UserError if there is no run.
class ReportedRuns {
 public:
  explicit ReportedRuns(const std::vector<std::filesystem::path>& directories);

  const RunIndex& index() const { return index_; }
  const std::vector<const SummaryReader*>& readers() const { return readers_; }
  SeriesCache& series() { return series_; }

  // Warns of the files of which something could not be read, once the series of a run is known.
  void warn_of_damage(const SummaryReader& run, const StepSeries& series) const;
  void warn_of_damage() const;  // for all runs; reads their series

  // Its id; a run that was given alone has the name of its directory.
  static std::string name_of(const SummaryReader& run);

 private:
  RunIndex index_;
  std::vector<const SummaryReader*> readers_;
  SeriesCache series_;
};

}  // namespace kintsugi
