#include "cli/report/report_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>

#include "cli/report/reported_runs.h"
#include "core/build_info.h"
#include "core/error.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/table.h"
#include "core/units.h"
#include "report/documents/csv.h"
#include "report/documents/html.h"
#include "report/documents/markdown.h"
#include "report/page/page.h"
#include "report/profile/profile_output.h"
#include "report/run_report.h"
#include "report/runs/json_members.h"
#include "report/runs/run_view.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

struct FormatName {
  ReportFormat format;
  std::string_view name, ending;
  std::string_view beginning;  // of a report in this format
};
constexpr std::array kReportFormats = {
    FormatName{ReportFormat::Text, "text", "", ""},
    FormatName{ReportFormat::Json, "json", ".json", "[\n  {\n    \"directory\":"},
    FormatName{ReportFormat::Markdown, "markdown", ".md", "# Report of "},
    FormatName{ReportFormat::Csv, "csv", ".csv", "step,"},
    FormatName{ReportFormat::Html, "html", ".html", kHtmlBeginning},
};
const FormatName& name_of(ReportFormat format) {
  return kReportFormats[static_cast<std::size_t>(format)];
}

// Whether an earlier report is in this file: it may be replaced inside a run directory too.
bool is_report(const fs::path& output, ReportFormat format) {
  const bool several = format == ReportFormat::Csv && begins_with(output, "run,step,");
  return several || begins_with(output, name_of(format).beginning);
}

std::string text_of_runs(const std::vector<fs::path>& directories) {
  const ReportedRuns runs(directories);
  runs.warn_of_damage();
  std::string text;
  for (const SummaryReader* run : runs.readers())
    text += printable(report_text(read_run(runs.index().given_path(*run))));
  return text;
}

std::string json_of_runs(const std::vector<fs::path>& directories) {
  const ReportedRuns runs(directories);
  runs.warn_of_damage();
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const SummaryReader* run : runs.readers())
    all.push_back(report_json(read_run(runs.index().given_path(*run))));
  return json_lines(all);
}

double report_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Tables and pages of more runs cannot be read.
void refuse_too_many(const ReportedRuns& runs) {
  if (runs.readers().size() > kMostReportRuns)
    user_error("these are {} runs: give at most {}, or use --csv, --json or kintsugi dashboard",
               runs.readers().size(), kMostReportRuns);
}

std::string markdown_of_runs(const std::vector<fs::path>& directories) {
  ReportedRuns runs(directories);
  refuse_too_many(runs);
  std::vector<std::int64_t> last_steps;
  for (const SummaryReader* run : runs.readers())
    last_steps.push_back(static_cast<std::int64_t>(run->summary().step.value_or(0)));
  MarkdownReport report{
      .table_steps = loss_table_steps(last_steps),
      .differences = json_at(compare_json(runs.readers()), "configuration"),
      .written = fmt::format("{} by kintsugi {}", iso_time(report_time_s()), program_version())};
  for (const SummaryReader* run : runs.readers()) {
    report.runs.push_back(
        {.name = ReportedRuns::name_of(*run), .view = run_json(*run, runs.series())});
    runs.series().with(run->directory(), [&](const StepSeries& series) {
      report.runs.back().figures = step_figures(series, report.table_steps);
      runs.warn_of_damage(*run, series);
    });
  }
  return to_markdown(report);
}

// The profiles of a run as the page reads them: {"steps-20-25.json": {…}}. One that cannot be read
// is left out with a warning.
std::string profiles_of(const fs::path& directory) {
  std::string all;
  for (const std::string& name : profile_names(directory)) {
    try {
      all += fmt::format("{}{}:{}", all.empty() ? "" : ",", compact_json(name),
                         profile_page_json(directory / "profiles" / name));
    } catch (const UserError& error) {
      log_warning("the report has no profile {}: {}", printable(name), error.what());
    }
  }
  return all.empty() ? "" : "{" + all + "}";
}

std::string html_of_runs(const std::vector<fs::path>& directories) {
  ReportedRuns runs(directories);
  refuse_too_many(runs);
  HtmlReport report{.generated_s = report_time_s(),
                    .runs = compact_json(runs_json(runs.index())),
                    .compare = compact_json(compare_json(runs.readers()))};
  for (const SummaryReader* run : runs.readers()) {
    report.run.push_back({.id = run->summary().id,
                          .view = compact_json(run_json(*run, runs.series())),
                          .profiles = profiles_of(run->directory())});
    runs.series().with(run->directory(), [&](const StepSeries& series) {
      report.run.back().series = report_series(series, runs.readers().size());
      runs.warn_of_damage(*run, series);
    });
  }
  return html_report(page_html(), report_data(report));
}

std::string content_of(const std::vector<fs::path>& directories, ReportFormat format) {
  switch (format) {
    case ReportFormat::Json:
      return json_of_runs(directories);
    case ReportFormat::Markdown:
      return markdown_of_runs(directories);
    case ReportFormat::Html:
      return html_of_runs(directories);
    default:
      return text_of_runs(directories);
  }
}

void write_csv_of(const std::vector<fs::path>& directories,
                  const std::function<void(std::string_view)>& write) {
  const ReportedRuns runs(directories);
  runs.warn_of_damage();
  std::vector<CsvRun> sources;
  for (const SummaryReader* run : runs.readers())
    sources.push_back({ReportedRuns::name_of(*run), run->directory() / "metrics.jsonl"});
  write_csv(sources, write);
}

}  // namespace

std::string_view to_string(ReportFormat format) { return name_of(format).name; }

std::optional<ReportFormat> format_of_file(const fs::path& file) {
  std::string ending = file.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const FormatName& one : kReportFormats)
    if (!one.ending.empty() && ending == one.ending) return one.format;
  return {};
}

void write_report(const std::vector<fs::path>& directories, ReportFormat format,
                  const ReportTarget& target) {
  const fs::path& output = target.output;
  const auto print = [](std::string_view text) { fmt::print("{}", text); };
  if (output.empty()) {
    if (format == ReportFormat::Csv) return write_csv_of(directories, print);
    return print(content_of(directories, format));
  }
  OutputFile file("--output", output,
                  {.overwrite = target.overwrite,
                   .inputs = directories,
                   .is_own = [&](const fs::path& path) { return is_report(path, format); }});
  if (format == ReportFormat::Csv)
    write_csv_of(directories, [&](std::string_view text) { file.write(text); });
  else
    file.write(content_of(directories, format));
  file.publish();
  log_note("{}: {}", output.string(), format_bytes(static_cast<double>(fs::file_size(output))));
}

}  // namespace kintsugi
