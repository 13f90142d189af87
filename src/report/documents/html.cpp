#include "report/documents/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"
#include "core/json_members.h"
#include "report/runs/expert_history.h"
#include "report/runs/series_view.h"

namespace kintsugi {
namespace {

constexpr std::size_t kPointBytes = 40;  // x, y, low and high with their commas
constexpr std::size_t kMostRunBytes = 1'500'000, kMostBytes = 20'000'000;  // of curves
constexpr std::size_t kLeastPoints = 50, kMostPoints = 1500;
constexpr std::size_t kMostReportKeys = 200;  // later ones are left out

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

// The hash of a script or style, as a policy names it.
std::string policy_hash(std::string_view content) {
  const std::string digits = sha256_hex(content);
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return "'sha256-" + base64(bytes) + "'";
}

// Removes the nonces of all elements of a kind and returns the hashes of their contents.
std::string seal(std::string& page, const std::string& kind) {
  const std::string marked = "<" + kind + " nonce=\"NONCE\">", plain = "<" + kind + ">",
                    end = "</" + kind + ">";
  std::string hashes;
  for (std::size_t at = 0; (at = page.find(marked, at)) != std::string::npos;) {
    page.replace(at, marked.size(), plain);
    at += plain.size();
    const std::size_t close = page.find(end, at);
    hashes += " " + policy_hash(std::string_view(page).substr(at, close - at));
  }
  return hashes.empty() ? " 'none'" : hashes;
}

void insert_after(std::string& page, std::string_view what, std::string_view text) {
  const std::size_t at = page.find(what);
  if (at == std::string::npos) failure("the page of the dashboard has no {}", what);
  page.insert(at + what.size(), text);
}

// A text inside a script element cannot end it.
std::string without_less_than(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json)
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  return text;
}

std::string or_null(const std::string& json) { return json.empty() ? "null" : json; }

}  // namespace

std::size_t report_points(std::size_t keys, std::size_t runs) {
  const std::size_t bytes = std::min(kMostRunBytes, kMostBytes / std::max<std::size_t>(runs, 1));
  return std::clamp(bytes / (3 * kPointBytes * std::max<std::size_t>(keys, 1)), kLeastPoints,
                    kMostPoints);
}

std::size_t report_map_cells(std::size_t runs) {
  return std::min(ExpertHistory::kMostCells, kMostBytes / 2 / std::max<std::size_t>(runs, 1));
}

std::string report_series(const StepSeries& series, std::size_t runs) {
  std::vector<std::string> keys = series.keys();
  if (keys.size() > kMostReportKeys) keys.resize(kMostReportKeys);
  const std::size_t points = report_points(keys.size(), runs);
  std::string text;
  for (const SeriesAxis axis : {SeriesAxis::Step, SeriesAxis::Tokens, SeriesAxis::Hours})
    text += fmt::format("{}\"{}\":{}", text.empty() ? "{" : ",", to_string(axis),
                        series_json(series, keys, {.axis = axis, .max_points = points}));
  return text + "}";
}

std::string report_data(const HtmlReport& report) {
  std::string views, series, profiles;
  for (const HtmlRun& run : report.run) {
    const std::string comma = views.empty() ? "" : ",", id = compact_json(run.id);
    views += comma + id + ":" + or_null(run.view);
    series += comma + id + ":" + or_null(run.series);
    if (!run.profiles.empty()) profiles += (profiles.empty() ? "" : ",") + id + ":" + run.profiles;
  }
  return fmt::format(
      "{{\"generated_s\":{:.0f},\"runs\":{},\"run\":{{{}}},\"series\":{{{}}},\"compare\":{},"
      "\"profile\":{{{}}}}}",
      report.generated_s, or_null(report.runs), views, series, or_null(report.compare), profiles);
}

std::string html_report(std::string_view page, std::string_view data) {
  std::string html(page);
  const std::string scripts = seal(html, "script"), styles = seal(html, "style");
  constexpr std::string_view kDocumentType = "<!doctype html>";
  insert_after(html, kDocumentType, kHtmlBeginning.substr(kDocumentType.size()));
  insert_after(html, "<head>",
               fmt::format("\n<meta http-equiv=\"Content-Security-Policy\" content=\""
                           "default-src 'none'; script-src{}; style-src{}; img-src data:; "
                           "base-uri 'none'; form-action 'none'\">",
                           scripts, styles));
  insert_after(html, "<script type=\"application/json\" id=\"data\">", without_less_than(data));
  return html;
}

}  // namespace kintsugi
