// Run directories, as reports and the live view read them.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_members.h"
#include "report/documents/exports.h"
#include "report/documents/html.h"
#include "report/documents/markdown.h"
#include "report/documents/model_documentation.h"
#include "report/runs/run_index.h"
#include "report/runs/run_view.h"
#include "report/watch/frame.h"
#include "report/watch/run_watch.h"
#include "support/parser_lists.h"
#include "support/synthetic_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

FileParser::Files synthetic_files() {
  const TemporaryDirectory directory;
  write_synthetic_run(directory.path(), {.steps = 12, .total_steps = 12, .skipped = "outlier"});
  directory.write("energy.json",
                  R"({"levels":{"gpu":{"joules":72,"joules_per_token":1,"mean_w_per_node":5,)"
                  R"("source":"nvml","kind":"counter","time_measured":0.5,"reason":null}},)"
                  R"("co2e":{"of":"GPUs","location_based":{"kg":1.5}}})");
  directory.write("data.json", R"({"files":[{"path":"d/en.bin","bytes":1000}]})");
  directory.write("layout.json", R"({"ranks":8,"nodes":["n1"],"device":"cpu"})");
  directory.write("events.jsonl", R"({"time_s":1700000000,"event":"spike","step":7,"message":"x"})"
                                  "\n");
  return files_in(directory.path());
}

// A damaged file must not become a damaged document.
void check_html(const std::string& view, const std::string& series) {
  HtmlReport report{.run = {{.id = "a", .view = view, .series = series}}};
  if (!nlohmann::json::accept(report_data(report))) failure("the data of the page is no JSON");
}

void write_documents(const fs::path& directory) {
  RunIndex index({directory});
  index.search();
  if (index.runs().empty()) user_error("there is no run");
  SeriesCache cache;
  for (const auto& [id, run] : index.runs()) {
    const auto last = static_cast<std::int64_t>(run.summary().step.value_or(0));
    MarkdownReport report{.table_steps = loss_table_steps({last}),
                          .differences = compare_json({&run})["configuration"]};
    report.runs.push_back({.name = id, .view = run_json(run, cache)});
    cache.with(run.directory(), [&](const StepSeries& series) {
      report.runs[0].figures = step_figures(series, report.table_steps);
      check_html(compact_json(report.runs[0].view), report_series(series, 1));
    });
    to_markdown(report);
    const fs::path metrics = run.directory() / "metrics.jsonl";
    write_csv({{id, metrics}}, [](std::string_view) {});
    WandbEncoder encoder;
    encoder.begin(tracked_run(run).facts);
    visit_records(metrics, [&](const RecordValues& values) { encoder.history(values); });
    encoder.summary();
    const DocumentedRun documented{.name = id,
                                   .directory = run.directory(),
                                   .summary = run.summary(),
                                   .facts = {.stages = {{"", 1e9}}}};
    const nlohmann::ordered_json form = model_documentation({documented});
    documentation_markdown(form);
    documented_model_card(documented, form);
  }
  RunWatch watch({directory});
  std::vector<WatchedRun> runs = watch.look();
  for (WatchedRun& run : runs) watch.read_details(run);
  watch_frame(runs, {});
}

}  // namespace

std::vector<FileParser> document_parsers() {
  FileParser::Files files = synthetic_files(), without_configuration = files;
  without_configuration.erase("config.yaml");  // only status.json makes it a run
  return {{.name = "run-documents",
           .samples = {std::move(files), std::move(without_configuration)},
           .damaged = {},
           .read = write_documents}};
}

}  // namespace kintsugi
