#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/runs/expert_history.h"
#include "report/runs/run_summary.h"
#include "report/runs/series_view.h"

namespace kintsugi {

// Everything that is known of a run but its curves: the reply of /api/run. Files that are missing
// or damaged are null, long ones are read from their end. `most_cells`: of the maps of experts.
nlohmann::ordered_json run_json(const SummaryReader& run, SeriesCache& series,
                                std::size_t most_cells = ExpertHistory::kMostCells);

// The files of a run of which something could not be read, once its series is known. Names are
// those in the run directory.
std::vector<SkippedFile> damaged_files(const std::filesystem::path& run, const StepSeries& series);

// The last lines of log.txt, and where the next ones begin.
struct LogTail {
  std::vector<std::string> lines = {};
  std::uint64_t end = 0, inode = 0;
};
LogTail read_log_tail(const std::filesystem::path& run);
// What was appended since `before`, within bounds. `before` becomes the present state. A log that
// was replaced is read from its end.
std::vector<std::string> read_new_log_lines(const std::filesystem::path& run, LogTail& before);

// The names in RUN/profiles, sorted: profiles that /api/profile can show.
std::vector<std::string> profile_names(const std::filesystem::path& run);

// The reply of /api/compare: summaries, and the keys of config.yaml that differ.
nlohmann::ordered_json compare_json(const std::vector<const SummaryReader*>& runs);

}  // namespace kintsugi
