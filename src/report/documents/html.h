#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "report/runs/step_series.h"

namespace kintsugi {

// The first lines of a report as HTML, to tell it from other files.
inline constexpr std::string_view kHtmlReportMark = "<!-- report of kintsugi -->";

// One run as the page shows it. All texts are JSON.
struct HtmlRun {
  std::string id = {};
  std::string view = {};      // the reply of /api/run
  std::string profiles = {};  // {"steps-20-25.json": {…}}; empty: none
  const StepSeries* steps = nullptr;
};

struct HtmlReport {
  double generated_s = 0;    // since 1970
  std::string runs = {};     // the reply of /api/runs
  std::string compare = {};  // the reply of /api/compare
  std::vector<HtmlRun> run = {};
};

// Bytes of the curves of one run, at most. With many keys each curve gets fewer points.
inline constexpr std::size_t kMostSeriesBytes = 1'500'000;
inline constexpr std::size_t kMostReportPoints = 1500;
std::size_t report_points(std::size_t keys);

// The data that the page reads instead of asking a server: the replies of the server's API.
std::string report_data(const HtmlReport& report);

// The page as a file of its own, with the data in its element `data`. The page cannot load or send
// anything: its policy allows only its own script and style, by their hashes. `page` is the joined
// page with NONCE marks. Failure if it has no such element.
std::string html_report(std::string_view page, std::string_view data);

}  // namespace kintsugi
