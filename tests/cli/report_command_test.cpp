// kintsugi report: which format goes where. The formats themselves are tested in tests/report.
#include <nlohmann/json.hpp>
#include <regex>

#include "support/program_test.h"
#include "support/synthetic_run.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ReportCommand : public ProgramTest {
 protected:
  ReportCommand() {
    write_synthetic_run(directory_ / "runs/a", {});
    write_synthetic_run(directory_ / "runs/b", {.steps = 30, .state = "failed", .lr = "0.0003"});
  }
  std::string mistake(const std::string& arguments) {
    const Outcome outcome = run_kintsugi("report " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_THAT(outcome.error, StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
  std::string output(const std::string& arguments) {
    const Outcome outcome = run_kintsugi("report " + arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return outcome.out;
  }
  // The data of a page, as the page reads it.
  static nlohmann::json data_of(const std::string& html) {
    const std::string begin = "<script type=\"application/json\" id=\"data\">";
    const std::size_t at = html.find(begin) + begin.size();
    return nlohmann::json::parse(html.substr(at, html.find("</script>", at) - at));
  }
};

TEST_F(ReportCommand, TextByDefault) {
  const std::string text = output("runs/a");
  EXPECT_THAT(text, AllOf(StartsWith("runs/a: finished\n"), HasSubstr("loss 1.0800"),
                          HasSubstr("goodput: 71.4 %")));
  EXPECT_EQ(output("runs"), text + output("runs/b")) << "a folder of runs";
  EXPECT_THAT(mistake("nowhere"), HasSubstr("nowhere"));
}

TEST_F(ReportCommand, AFolderWithoutRunsIsAMistake) {
  std::filesystem::create_directories(directory_ / "empty");
  for (const char* format : {"", " --json", " --markdown", " --csv", " --output x.html"})
    EXPECT_THAT(mistake("empty" + std::string(format)), HasSubstr("empty")) << format;
  EXPECT_FALSE(std::filesystem::exists(directory_ / "x.html"));
}

TEST_F(ReportCommand, TheSameOnStandardOutputAndInAFile) {
  for (const char* format : {"json", "csv"}) {
    const std::string file = std::string("report.") + format;
    EXPECT_EQ(output("runs/a runs/b --output " + file), "");
    EXPECT_EQ(content_of(file), output("runs/a runs/b --" + std::string(format))) << format;
  }
  output("runs/a --output report.md");
  EXPECT_THAT(content_of("report.md"), StartsWith("# Report of a\n"));
  EXPECT_THAT(output("runs/a --markdown"), StartsWith("# Report of a\n"));
  output("runs/a --csv --output steps.txt");  // an ending that says nothing
  EXPECT_THAT(content_of("steps.txt"), StartsWith("step,seq,tokens,loss,"));
}

TEST_F(ReportCommand, ContradictionsAreMistakes) {
  EXPECT_THAT(mistake("runs/a --output x.html --csv"),
              AllOf(HasSubstr("x.html"), HasSubstr("csv")));
  EXPECT_THAT(mistake("runs/a --markdown --csv"), HasSubstr("--markdown"));
  EXPECT_THAT(mistake("runs/a --markdown --json"), HasSubstr("--json"));
  EXPECT_THAT(mistake("runs/a --output x.pdf"), AllOf(HasSubstr("x.pdf"), HasSubstr(".html")));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "x.html"));
}

TEST_F(ReportCommand, OnlyReportsAreReplaced) {
  for (const char* file : {"r.md", "r.csv", "r.json", "r.html"}) {
    output("runs/a --output " + std::string(file));
    output("runs/b runs/a --output " + std::string(file));
    EXPECT_THAT(content_of(file), HasSubstr("0.0003")) << file << " was replaced";
    directory_.write(file, "somebody's work\n");
    EXPECT_THAT(mistake("runs/a --output " + std::string(file)), HasSubstr(file));
    EXPECT_EQ(content_of(file), "somebody's work\n");
  }
  directory_.write("page.html", "<!doctype html>\n<html>somebody's page</html>\n");
  EXPECT_THAT(mistake("runs/a --output page.html"), HasSubstr("page.html"));
  std::filesystem::create_directories(directory_ / "folder.md");
  EXPECT_THAT(mistake("runs/a --output folder.md"), HasSubstr("folder.md"));
}

TEST_F(ReportCommand, ThePageHasEverythingInOneFile) {
  output("runs/a runs/b --output report.html");
  const std::string html = content_of("report.html");
  EXPECT_THAT(html, AllOf(StartsWith("<!doctype html>"), Not(HasSubstr("NONCE"))));
  const std::regex address("https?://(?!www\\.w3\\.org/)");  // names of SVG are no addresses
  EXPECT_FALSE(std::regex_search(html, address));
  const nlohmann::json data = data_of(html);
  EXPECT_EQ(data["runs"]["runs"].size(), 2u);
  EXPECT_EQ(data["run"]["b"]["summary"]["state"], "failed");
  EXPECT_EQ(data["compare"]["configuration"][0]["key"], "optimizer.lr");
  // Few steps: every value is there, and equals the source.
  const nlohmann::json& loss = data["series"]["a"]["step"]["keys"]["loss"];
  ASSERT_EQ(loss["x"].size(), 100u);
  for (int k = 1; k <= 100; ++k) {
    EXPECT_EQ(loss["x"][k - 1], k);
    EXPECT_FLOAT_EQ(loss["y"][k - 1].get<float>(), 1 + 8.0f / static_cast<float>(k));
  }
  EXPECT_EQ(data["series"]["a"]["tokens"]["keys"]["loss"]["x"][9], 10000);
}

TEST_F(ReportCommand, HostileTextCannotLeaveThePage) {
  const std::string hostile = "</script><script>alert(1)</script><!--";
  write_synthetic_run(directory_ / "evil/<img src=x onerror=alert(1)>",
                      {.state = "failed", .message = hostile, .log = hostile + "\n"});
  output("evil --output report.html");
  const std::string html = content_of("report.html");
  EXPECT_THAT(html, AllOf(Not(HasSubstr("alert(1)</script>")), Not(HasSubstr("<img src=x"))));
  const nlohmann::json data = data_of(html);
  EXPECT_EQ(data["run"]["<img src=x onerror=alert(1)>"]["summary"]["message"], hostile);
  EXPECT_EQ(data["run"]["<img src=x onerror=alert(1)>"]["log"][0], hostile);
}

TEST_F(ReportCommand, AFullDiskLeavesNothingBehind) {
  const Outcome outcome =
      run_in_shell("ulimit -f 8; \"$kintsugi\" report runs/a runs/b --output report.csv");
  EXPECT_EQ(outcome.code, 1) << outcome.error;
  EXPECT_THAT(outcome.error, HasSubstr("report.csv"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "report.csv"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "report.csv.tmp"));
}

TEST_F(ReportCommand, TooManyRunsForOnePage) {
  for (int i = 0; i < 51; ++i)
    write_synthetic_run(directory_ / ("many/" + std::to_string(i)), {.steps = 10});
  EXPECT_THAT(mistake("many --output report.html"), HasSubstr("51 runs"));
  EXPECT_THAT(mistake("many --markdown"), HasSubstr("51 runs"));
  const std::string csv = output("many --csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 51 * 10);
}

}  // namespace
}  // namespace kintsugi
