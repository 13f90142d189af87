#include "cli/report/reported_runs.h"

#include "core/error.h"
#include "core/log.h"

namespace kintsugi {

ReportedRuns::ReportedRuns(const std::vector<std::filesystem::path>& directories)
    : index_(directories) {
  index_.search();
  for (const SkippedFile& file : index_.skipped())
    log_warning("{}: {}", file.path.string(), file.why);
  if (index_.runs().empty())
    user_error("there is no run in {}; give run directories (run.dir) or folders of them",
               directories.front().string());
  for (const auto& [id, run] : index_.runs()) readers_.push_back(&run);
}

std::string ReportedRuns::name_of(const SummaryReader& run) {
  return run.summary().id == "." ? run.summary().name : run.summary().id;
}

}  // namespace kintsugi
