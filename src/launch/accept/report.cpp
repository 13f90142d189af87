#include "launch/accept/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/log.h"
#include "core/units.h"
#include "launch/slurm.h"

namespace kintsugi {
namespace {

// The failures first, the rest in the order in which they were measured.
Table check_table(const AcceptChecks& checks) {
  Table table({Column::text("part", "part"), Column::text("check", "name"),
               Column::text("verdict", "verdict"), Column::text("found", "text"),
               Column::text("ranks", "ranks"), Column::text("nodes", "nodes"),
               Column::text("what to do", "remedy"), Column::hidden("group")});
  const auto add = [&](bool failed) {
    for (const AcceptCheck& one : checks)
      if ((one.verdict == Verdict::Fail) == failed)
        table.add({one.part, one.name, to_string(one.verdict), one.text,
                   one.ranks.empty()
                       ? Cell::missing()
                       : Cell(one.ranks, fmt::format("{}", fmt::join(one.ranks, " "))),
                   one.nodes.empty() ? Cell::missing() : Cell(one.nodes, host_list(one.nodes)),
                   Cell::or_missing(one.remedy), Cell::or_missing(one.group)});
  };
  add(true);
  add(false);
  return table;
}

std::string headline(const AcceptReport& report) {
  return fmt::format("{} on {}; {}, machine {}; {} of {}", format_number(report.ranks, "rank"),
                     format_number(report.nodes, "node"), printable(report.device),
                     printable(report.machine), format_duration(report.seconds),
                     format_duration(report.budget_s));
}

std::string summary(const AcceptReport& report) {
  return fmt::format(
      "{}{}: {} passed, {} failed, {} noted, {} not measured", to_string(verdict_of(report)),
      report.missing.empty() ? ""
                             : fmt::format(" (not complete: {})", fmt::join(report.missing, ", ")),
      count_of(report, Verdict::Pass), count_of(report, Verdict::Fail),
      count_of(report, Verdict::Noted), count_of(report, Verdict::NotMeasured));
}

constexpr const char* kPage = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>kintsugi accept</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.4 sans-serif; margin: 2em; max-width: 90em }}
table {{ border-collapse: collapse; margin: 0.5em 0 1.5em }}
th, td {{ border-bottom: 1px solid #ccc; padding: 0.2em 0.8em 0.2em 0; text-align: left;
  vertical-align: top }}
.number {{ text-align: right }}
</style></head><body>
<h1>kintsugi accept: {}</h1>
<p>{}<br>{}<br>{}, finished {}</p>
)";

}  // namespace

Verdict verdict_of(const AcceptReport& report) {
  if (count_of(report, Verdict::Fail) > 0) return Verdict::Fail;
  return report.missing.empty() ? Verdict::Pass : Verdict::Incomplete;
}

std::size_t count_of(const AcceptReport& report, Verdict verdict) {
  return static_cast<std::size_t>(
      std::count_if(report.checks.begin(), report.checks.end(),
                    [&](const AcceptCheck& one) { return one.verdict == verdict; }));
}

std::string report_text(const AcceptReport& report) {
  Table table({Column::text("part"), Column::text("check"), Column::text("verdict"),
               Column::text("found")});
  for (const AcceptCheck& one : report.checks)
    table.add({one.part, one.name, to_string(one.verdict), one.text});
  std::string text = headline(report) + "\n" + table.text();
  for (const AcceptCheck& one : report.checks)
    if (one.verdict == Verdict::Fail && !one.remedy.empty())
      text += fmt::format("{}, {}: {}\n", one.part, one.name, one.remedy);
  for (const std::string& what : report.left_out) text += fmt::format("left out: {}\n", what);
  return text + summary(report) + "\n";
}

nlohmann::ordered_json report_json(const AcceptReport& report) {
  const auto json_of = [&](Verdict verdict) { return std::string(to_string(verdict)); };
  return {{"verdict", json_of(verdict_of(report))},
          {"program", report.program},
          {"machine", report.machine},
          {"device", report.device},
          {"launch", report.launch},
          {"ranks", report.ranks},
          {"nodes", report.nodes},
          {"seconds", report.seconds},
          {"budget_s", report.budget_s},
          {"finished_s", report.finished_s},
          {"checks", check_table(report.checks).json()},
          {"bandwidths", bandwidth_table(report.bandwidths).json()},
          {"speed", speed_table(report.speed).json()},
          {"feature_pairs_covered", report.pairs_covered},
          {"left_out", report.left_out},
          {"not_complete", report.missing}};
}

std::string report_html(const AcceptReport& report) {
  std::string text = fmt::format(kPage, to_string(verdict_of(report)), html_text(headline(report)),
                                 html_text(summary(report)), html_text(report.program),
                                 iso_time(report.finished_s));
  text += "<h2>Checks</h2>\n" + check_table(report.checks).html();
  if (!report.speed.empty())
    text += "<h2>Steps, beside the plan</h2>\n" + speed_table(report.speed).html();
  if (!report.bandwidths.empty())
    text += "<h2>Collectives</h2>\n" + bandwidth_table(report.bandwidths).html();
  if (!report.left_out.empty()) {
    text += "<h2>Left out</h2>\n<ul>\n";
    for (const std::string& what : report.left_out)
      text += fmt::format("<li>{}</li>\n", html_text(what));
    text += "</ul>\n";
  }
  return text + "</body></html>\n";
}

}  // namespace kintsugi
