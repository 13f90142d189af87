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

TEST_F(ReportCommand, ExportsForTrackers) {
  const auto files_below = [&](const char* folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ / folder))
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    return files;
  };
  for (const char* where : {"--export mlflow --output mlruns", "--export wandb --output wandb"}) {
    EXPECT_EQ(output("runs " + std::string(where)), "");
    const auto first = files_below(std::string(where).ends_with("mlruns") ? "mlruns" : "wandb");
    output("runs " + std::string(where));
    EXPECT_EQ(files_below(std::string(where).ends_with("mlruns") ? "mlruns" : "wandb"), first);
  }
  const auto named = [&](const char* folder, const std::string& name) {
    const auto files = files_below(folder);
    return std::count_if(files.begin(), files.end(),
                         [&](const std::string& file) { return file.ends_with(name); });
  };
  EXPECT_EQ(named("mlruns", "/metrics/loss"), 2);
  EXPECT_EQ(named("wandb", ".wandb"), 2);
  EXPECT_EQ(output("runs/a --export csv"), output("runs/a --csv"));
  output("runs/a --export csv --output x.csv");
  EXPECT_EQ(content_of("x.csv"), output("runs/a --csv"));
}

TEST_F(ReportCommand, MistakesOfExports) {
  EXPECT_THAT(mistake("runs/a --export aim"), HasSubstr("aim"));
  EXPECT_THAT(mistake("runs/a --export mlflow"), HasSubstr("--output"));
  EXPECT_THAT(mistake("--export mlflow --output x"), HasSubstr("runs"));
  EXPECT_THAT(mistake("runs/a --export wandb --output runs/a/wandb"), HasSubstr("runs/a"));
  EXPECT_THAT(mistake("runs/a --export wandb --output runs"), HasSubstr("runs"));
  EXPECT_THAT(mistake("runs/a --export mlflow --output x --overwrite"), HasSubstr("--overwrite"));
  EXPECT_THAT(mistake("runs/a --export csv --markdown"), HasSubstr("--markdown"));
  EXPECT_THAT(mistake("runs/a --model-documentation --csv"), HasSubstr("--csv"));
  EXPECT_THAT(mistake("runs/a --model-documentation --export csv"), HasSubstr("--export"));
  EXPECT_THAT(mistake("runs/a --model-documentation --json --output x"), HasSubstr("--json"));
  EXPECT_THAT(mistake("--profile x.json --export mlflow"), HasSubstr("--export"));
  // One run without metrics: none is written.
  std::filesystem::remove(directory_ / "runs/b/metrics.jsonl");
  EXPECT_THAT(run_kintsugi("report runs --export mlflow --output x").error,
              HasSubstr("cannot be exported: metrics.jsonl is missing"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "x"));
}

TEST_F(ReportCommand, ModelDocumentation) {
  const std::string text = output("runs/a runs/b --model-documentation");
  EXPECT_THAT(text, AllOf(StartsWith("# Model documentation of b\n"), HasSubstr("## To be added\n"),
                          HasSubstr("b: no readable energy.json")));
  const auto json = nlohmann::json::parse(output("runs/a runs/b --model-documentation --json"));
  EXPECT_EQ(json["model"], "b");
  output("runs/a runs/b --model-documentation --output form");
  EXPECT_EQ(content_of("form/model-documentation.md"), text);
  EXPECT_EQ(nlohmann::json::parse(content_of("form/model-documentation.json")), json);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "form/README.md")) << "there is no checkpoint";
  const std::string again = "runs/a --model-documentation --output form";
  EXPECT_THAT(mistake(again), HasSubstr("--overwrite"));
  std::filesystem::create_directories(directory_ / "runs/a/checkpoints/step-00000100");
  directory_.write("runs/a/checkpoints/step-00000100/checksums.json", "{}");
  directory_.write("runs/a/checkpoints/step-00000100/README.md", "# The card\n");
  output(again + " --overwrite");
  EXPECT_THAT(content_of("form/README.md"), StartsWith("# The card\n"));
  directory_.write("form/notes.txt", "mine");
  EXPECT_THAT(mistake(again + " --overwrite"), HasSubstr("notes.txt"));
}

TEST_F(ReportCommand, AFolderWithoutRunsIsAMistake) {
  std::filesystem::create_directories(directory_ / "empty");
  for (const char* format : {"", " --json", " --markdown", " --csv", " --output x.html"})
    EXPECT_THAT(mistake("empty" + std::string(format)), HasSubstr("empty")) << format;
  EXPECT_FALSE(std::filesystem::exists(directory_ / "x.html"));
}

TEST_F(ReportCommand, ADamagedRunIsLeftOutWithAWarning) {
  std::filesystem::create_directories(directory_ / "runs/cut");
  directory_.write("runs/cut/status.json", "{\"state\": \"runn");
  for (const char* format : {"", " --json", " --markdown", " --csv"}) {
    const Outcome outcome = run_kintsugi("report runs" + std::string(format));
    EXPECT_EQ(outcome.code, 0) << format;
    EXPECT_THAT(outcome.error, HasSubstr("runs/cut/status.json")) << format;
    EXPECT_THAT(outcome.out, Not(HasSubstr("cut"))) << format;
  }
  EXPECT_EQ(output("runs"), output("runs/a") + output("runs/b"));
  const Outcome alone = run_kintsugi("report runs/cut");
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.error, HasSubstr("error: there is no run in runs/cut"));
}

// A killed run: its status.json is older than its last step, and says that it is running.
TEST_F(ReportCommand, AKilledRunIsLostInAllFormats) {
  const SyntheticRun killed{.steps = 60, .state = "running"};
  write_synthetic_run(directory_ / "killed", killed);
  directory_.write("killed/status.json", synthetic_status({.steps = 40, .state = "running"}));
  // 10 s of startup and 60 steps of 0.5 s; nothing shows what the last 20 s were used for.
  run_in_shell("touch -d @1700000060 killed/status.json killed/metrics.jsonl");
  EXPECT_THAT(output("killed"),
              AllOf(StartsWith("killed: lost (no sign of life)\n"), HasSubstr("step 60 of 100"),
                    HasSubstr("60000 tokens, loss 1.1333"), HasSubstr("goodput: 50.0 %"),
                    Not(HasSubstr("running"))));
  const auto json = nlohmann::json::parse(output("killed --json"))[0];
  EXPECT_EQ(json["summary"]["state"], "lost");
  EXPECT_EQ(json["summary"]["step"], 60);
  EXPECT_EQ(json["attempts"][0]["state"], "lost");
  EXPECT_EQ(json["goodput"]["other_s"], 20);
  EXPECT_THAT(output("killed --markdown"),
              AllOf(HasSubstr("lost"), HasSubstr("50.0 %"), Not(HasSubstr("running"))));
  output("killed --output report.html");
  const nlohmann::json data = data_of(content_of("report.html"));
  EXPECT_EQ(data["runs"]["runs"][0]["goodput"], 0.5);
  EXPECT_EQ(data["run"]["."]["summary"]["goodput"], 0.5);
}

TEST_F(ReportCommand, DamagedLinesAreNamed) {
  std::string metrics;
  for (int k = 1; k <= 30; ++k) {
    metrics += synthetic_record(k);
    if (k == 11 || k == 20 || k == 25) metrics += "{\"step\": nonsense\n";
  }
  write_synthetic_run(directory_ / "bad", {.steps = 30});
  directory_.write("bad/metrics.jsonl", metrics);
  directory_.write("bad/config.yaml", "train: [1\n");
  write_synthetic_run(directory_ / "foreign", {.steps = 10});
  directory_.write("foreign/metrics.jsonl", "epoch,loss\n1,2\n");
  for (const char* format : {"", " --json", " --markdown", " --csv", " --output x.html"}) {
    const Outcome outcome = run_kintsugi("report bad foreign" + std::string(format));
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    EXPECT_THAT(
        outcome.error,
        AllOf(HasSubstr("bad/metrics.jsonl: 3 lines could not be read (first: line 12)"),
              HasSubstr("bad/config.yaml: was not used: config.yaml line 2 is not valid YAML"),
              HasSubstr("foreign/metrics.jsonl: has no step that could be read; 2 lines could not "
                        "be read (first: line 1)")))
        << format;
  }
  const nlohmann::json files = data_of(content_of("x.html"))["run"]["bad"]["skipped"];
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0]["path"], "metrics.jsonl");
}

TEST_F(ReportCommand, RunsKeepTheOrderOfTheArguments) {
  output("runs/b runs/a --output report.html");
  const nlohmann::json data = data_of(content_of("report.html"));
  EXPECT_EQ(data["runs"]["runs"][0]["id"], "b");
  EXPECT_EQ(data["compare"]["ids"], nlohmann::json({"b", "a"}));
  EXPECT_EQ(output("runs/b runs/a"), output("runs/b") + output("runs/a"));
  const std::string csv = output("runs/b runs/a --csv"), table = output("runs/b runs/a --markdown");
  EXPECT_LT(csv.find("\nb,1,"), csv.find("\na,1,"));
  EXPECT_LT(table.find("| b |"), table.find("| a |"));
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

TEST_F(ReportCommand, MistakesAreNamedBeforeTheWork) {
  EXPECT_THAT(mistake("/nonexist"), HasSubstr("/nonexist does not exist"));
  directory_.write("file", "text");
  EXPECT_THAT(mistake("file"), HasSubstr("file is not a directory"));
  for (const char* name : {"none/report.html", "none/metrics.csv", "file/report.md"})
    EXPECT_THAT(mistake(std::string("runs/a --output ") + name),
                AllOf(HasSubstr(name), HasSubstr("there is no directory"), Not(HasSubstr(".tmp"))));
}

TEST_F(ReportCommand, LinksAreNotSearchedWithoutAWarning) {
  std::filesystem::create_directory_symlink(directory_ / "runs/a", directory_ / "runs/latest");
  const Outcome outcome = run_kintsugi("report runs");
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.out, output("runs/a") + output("runs/b"));
}

TEST_F(ReportCommand, WhatIsNoProfileIsNamed) {
  directory_.write("corpus.txt", "Once upon a time");
  EXPECT_THAT(mistake("--profile corpus.txt"),
              HasSubstr("corpus.txt is not a profile of kintsugi train --profile"));
  directory_.write("cut.json", "{\"otherData\": {\"kintsugi_profile\": 1, ");
  EXPECT_THAT(mistake("--profile cut.json"), HasSubstr("cut.json is damaged"));
  EXPECT_THAT(mistake("--profile runs/a"), HasSubstr("runs/a has no profile"));
}

TEST_F(ReportCommand, OnlyReportsAreReplacedInARun) {
  for (const char* name : {"r.md", "r.csv", "r.json", "r.html"}) {
    const std::string file = "runs/a/" + std::string(name);
    output("runs/a --output " + file);
    EXPECT_THAT(mistake("runs/a --output " + file), HasSubstr("--overwrite")) << file;
    output("runs/b runs/a --overwrite --output " + file);
    EXPECT_THAT(content_of(file), HasSubstr("0.0003")) << file << " was replaced";
    directory_.write(file, "somebody's work\n");
    EXPECT_THAT(mistake("runs/a --overwrite --output " + file), HasSubstr(file));
    EXPECT_EQ(content_of(file), "somebody's work\n");
  }
  directory_.write("runs/a/page.html", "<!doctype html>\n<html>somebody's page</html>\n");
  EXPECT_THAT(mistake("runs/a --overwrite --output runs/a/page.html"), HasSubstr("page.html"));
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
