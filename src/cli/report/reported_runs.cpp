#include "cli/report/reported_runs.h"

#include "core/error.h"
#include "core/log.h"
#include "report/runs/run_view.h"

namespace kintsugi {
namespace {

constexpr std::size_t kCheckedBytes = 4 << 20;  // of a series whose values nobody needs

}  // namespace

ReportedRuns::ReportedRuns(const std::vector<std::filesystem::path>& directories)
    : index_(directories) {
  index_.search();
  for (const SkippedFile& file : index_.skipped())
    log_warning("{}: {}", file.path.string(), file.why);
  if (index_.runs().empty())
    user_error("there is no run in {}; give run directories (run.dir) or folders of them",
               directories.front().string());
  readers_ = index_.in_order();
}

void ReportedRuns::warn_of_damage(const SummaryReader& run, const StepSeries& series) const {
  for (const SkippedFile& file : damaged_files(run.directory(), series))
    log_warning("{}: {}", (index_.given_path(run) / file.path).string(), file.why);
}

void ReportedRuns::warn_of_damage() const {
  for (const SummaryReader* run : readers_) {
    StepSeries series(run->directory() / "metrics.jsonl", kCheckedBytes);
    series.update();
    warn_of_damage(*run, series);
  }
}

std::string ReportedRuns::name_of(const SummaryReader& run) {
  return run.summary().id == "." ? run.summary().name : run.summary().id;
}

}  // namespace kintsugi
