#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "report/documents/html.h"
#include "support/synthetic_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPage =
    "<!doctype html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n"
    "<style nonce=\"NONCE\">body{}</style>\n</head>\n<body>\n"
    "<script type=\"application/json\" id=\"data\"></script>\n"
    "<script nonce=\"NONCE\">alert(1)</script>\n</body>\n</html>\n";

std::string data_in(const std::string& html) {
  const std::string begin = "id=\"data\">";
  const std::size_t at = html.find(begin) + begin.size();
  return html.substr(at, html.find("</script>", at) - at);
}

TEST(HtmlReport, TheDataIsInTheirElement) {
  const std::string data = R"({"name":"</script><img src=x onerror=alert(1)>","n":[1,2.5,null]})";
  const std::string html = html_report(kPage, data);
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_EQ(nlohmann::json::parse(data_in(html)), nlohmann::json::parse(data));
  // No other end of a script than the two of the page.
  std::size_t ends = 0;
  for (std::size_t at = 0; (at = html.find("</script", at)) != std::string::npos; ++at) ++ends;
  EXPECT_EQ(ends, 2u);
}

// The hashes are those of `printf 'alert(1)' | openssl dgst -sha256 -binary | base64`.
TEST(HtmlReport, OnlyItsOwnScriptAndStyleAreAllowed) {
  const std::string html = html_report(kPage, "{}");
  EXPECT_THAT(html,
              AllOf(HasSubstr("default-src 'none'"), Not(HasSubstr("NONCE")),
                    HasSubstr("script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='; "),
                    HasSubstr("style-src 'sha256-fJgEClQWV1hGkK4qHMO0KotTsVnMYMXTq7/suurGyUo='; "),
                    HasSubstr("<script>alert(1)</script>"), HasSubstr("<style>body{}")));
  EXPECT_LT(html.find("Content-Security-Policy"), html.find("<style>"));
  EXPECT_TRUE(html.starts_with(kHtmlBeginning));
}

TEST(HtmlReport, APageWithoutTheElementIsAFailure) {
  EXPECT_THROW(html_report("<head></head>", "{}"), Failure);
  EXPECT_THROW(html_report("", "{}"), Failure);
}

TEST(HtmlReport, DataHasTheRepliesOfTheServer) {
  HtmlReport report{.generated_s = 1700000000,
                    .runs = R"({"runs":[]})",
                    .compare = R"({"ids":["a"]})",
                    .run = {{.id = "a\"<", .view = R"({"log":[]})", .series = R"({"step":1})"},
                            {.id = "b", .series = "{}", .profiles = R"({"p.json":{}})"}}};
  EXPECT_EQ(nlohmann::json::parse(report_data(report)),
            (nlohmann::json{{"generated_s", 1700000000},
                            {"runs", {{"runs", nlohmann::json::array()}}},
                            {"run", {{"a\"<", {{"log", nlohmann::json::array()}}}, {"b", nullptr}}},
                            {"series", {{"a\"<", {{"step", 1}}}, {"b", nlohmann::json::object()}}},
                            {"compare", {{"ids", {"a"}}}},
                            {"profile", {{"b", {{"p.json", nlohmann::json::object()}}}}}}));
}

TEST(HtmlReport, PointsAreBounded) {
  EXPECT_EQ(report_points(1, 1), 1500u);
  EXPECT_EQ(report_points(0, 0), 1500u);
  EXPECT_EQ(report_points(25, 1), 500u);   // 1.5 MB / (25 keys × 3 axes × 40 bytes)
  EXPECT_EQ(report_points(25, 40), 166u);  // 20 MB / 40 runs
  EXPECT_EQ(report_points(2000, 50), 50u);
}

// 14 keys, most of them with a value in each of 20,000 steps.
TEST(HtmlReport, TheCurvesOfALongRunAreSmall) {
  TemporaryDirectory directory;
  std::string metrics;
  for (int k = 1; k <= 20000; ++k) metrics += synthetic_record(k);
  StepSeries series(directory.write("metrics.jsonl", metrics));
  series.update();
  const std::string text = report_series(series, 1);
  EXPECT_LT(text.size(), 2'000'000u);
  const nlohmann::json json = nlohmann::json::parse(text);
  for (const char* axis : {"step", "tokens", "hours"}) {
    EXPECT_EQ(json[axis]["axis"], axis);
    EXPECT_EQ(json[axis]["rows"], 20000);
    const nlohmann::json& loss = json[axis]["keys"]["loss"];
    EXPECT_LE(loss["x"].size(), 1500u);
    EXPECT_GT(loss["x"].size(), 500u);
    EXPECT_EQ(loss["high"][0], 9);  // of the first step
  }
}

}  // namespace
}  // namespace kintsugi
