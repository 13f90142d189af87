#include "cli/report/report_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/new_file.h"
#include "core/units.h"
#include "report/dashboard/page.h"
#include "report/documents/csv.h"
#include "report/documents/html.h"
#include "report/documents/markdown.h"
#include "report/json_values.h"
#include "report/run_report.h"
#include "report/runs/json_members.h"
#include "report/runs/run_index.h"
#include "report/runs/run_view.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarkdownReportMark = "# Report of ";

double report_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The runs of a report, read once.
class ReportedRuns {
 public:
  explicit ReportedRuns(const std::vector<fs::path>& directories) : index_(directories) {
    index_.search();
    for (const SkippedFile& file : index_.skipped())
      log_warning("{}: {}", file.path.string(), file.why);
    if (index_.runs().empty())
      user_error("there is no run in {}; give run directories (run.dir) or folders of them",
                 directories.front().string());
    for (const auto& [id, run] : index_.runs()) readers_.push_back(&run);
  }

  const RunIndex& index() const { return index_; }
  const std::vector<const SummaryReader*>& readers() const { return readers_; }

  // As ids are, but a run that was given alone has the name of its directory.
  static std::string name_of(const SummaryReader& run) {
    return run.summary().id == "." ? run.summary().name : run.summary().id;
  }

 private:
  RunIndex index_;
  std::vector<const SummaryReader*> readers_;
};

}  // namespace
}  // namespace kintsugi
