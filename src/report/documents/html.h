#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "report/runs/step_series.h"

namespace kintsugi {

// The beginning of a report as HTML, which tells it from other pages.
inline constexpr std::string_view kHtmlBeginning = "<!doctype html><!-- report of kintsugi -->";

// One run as the page shows it. All texts are JSON.
struct HtmlRun {
  std::string id = {};
  std::string view = {};      // the reply of /api/run
  std::string series = {};    // of report_series
  std::string profiles = {};  // {"steps-20-25.json": {…}}; empty: none
};

struct HtmlReport {
  double generated_s = 0;    // since 1970
  std::string runs = {};     // the reply of /api/runs
  std::string compare = {};  // the reply of /api/compare
  std::vector<HtmlRun> run = {};
};

// The curves of one run over steps, tokens and hours. Each curve has at most 1,500 points, and
// fewer if there are many keys or many runs: all curves of a run take about 1.5 MB at most, and
// those of all runs together 20 MB.
std::string report_series(const StepSeries& series, std::size_t runs);
std::size_t report_points(std::size_t keys, std::size_t runs);
inline constexpr std::size_t kMostReportRuns = 50;
// For run_json: the maps of experts of all runs together take about 20 MB at most.
std::size_t report_map_cells(std::size_t runs);

// The data that the page reads instead of asking a server: the replies of the server's API.
std::string report_data(const HtmlReport& report);

// The page as a file of its own, with the data in its element `data`. The page cannot load or send
// anything: its policy allows only its own script and style, by their hashes. `page` is the joined
// page with NONCE marks. Failure if it has no such element.
std::string html_report(std::string_view page, std::string_view data);

}  // namespace kintsugi
