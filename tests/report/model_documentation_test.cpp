// The answers of a model documentation, against closed forms of the runs that they are from.
#include "report/documents/model_documentation.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/hash.h"
#include "report/runs/run_file.h"
#include "support/synthetic_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::ordered_json;

class ModelDocumentation : public testing::Test {
 protected:
  // 1000 tokens per step, 10 s of startup, 0.5 s per step and 10 s more on 2 nodes.
  DocumentedRun make(const std::string& name, int steps = 100) {
    write_synthetic_run(directory_ / name, {.steps = steps, .total_steps = steps});
    const fs::path run = directory_ / name;
    write(name + "/config.yaml",
          "model:\n  family: llama\n  layers: 4\n  max_positions: 128\n  init: null\n"
          "data:\n  train:\n    - path: d/en\n      name: en\n    - path: d/fi\n"
          "      name: \"fi|<b>\"\n");
    write(name + "/layout.json", R"({"ranks":8,"nodes":["n1","n2"],"device":"cuda: H200"})");
    write(name + "/data.json",
          R"({"files":[{"path":"d/en.bin","bytes":1000},{"path":"d/en.idx","bytes":24}]})");
    write(
        name + "/energy.json",
        R"({"version":"0.1.0","machine":null,"nodes":2,"gpus":8,"gpu_model":"H200","levels":{)"
        R"("gpu":{"joules":7.2e9,"source":"nvml","kind":"counter","time_measured":0.5},)"
        R"("cpu":{"joules":null,"reason":"no meter"},"memory":{"joules":null,"reason":"no meter"},)"
        R"("node":{"joules":9e9,"source":"ipmi","kind":"power","time_measured":1}},)"
        R"("facility":{"pue":1.2,"joules":1.08e10}})");
    write(name + "/checkpoints/step-00000050/checksums.json", "{\"old\": 1}\n");
    write(name + "/checkpoints/step-00000100/checksums.json", "{\"files\": {}}\n");
    write(name + "/checkpoints/step-00000100/README.md", "# The card\n\nText.\n");
    DocumentedRun documented{.name = name, .directory = resolved(run)};
    documented.facts = {.parameters = 1115264,
                        .active = 1115264,
                        .trained = 1115264,
                        .context = 128,
                        .reading_flops_per_token = 2e6,
                        .stages = {{"", 1e19}}};
    return documented;
  }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((directory_ / name).parent_path());
    directory_.write(name, text);
  }
  static Json row(const Json& documentation, const std::string& key) {
    for (const Json& one : documentation["rows"])
      if (one["key"] == key) return one;
    ADD_FAILURE() << "no row " << key;
    return {};
  }
  static double answer(const Json& documentation, const std::string& key) {
    return row(documentation, key)["answer"].get<double>();
  }
  TemporaryDirectory directory_;
};

TEST_F(ModelDocumentation, AnswersOfOneRun) {
  const Json all = model_documentation({make("a")});
  EXPECT_EQ(all["model"], "a");
  EXPECT_EQ(row(all, "version")["answer"], "step-00000100");
  EXPECT_EQ(row(all, "sha256_of_checksums")["answer"], sha256_hex("{\"files\": {}}\n"));
  EXPECT_EQ(row(all, "derived_from")["answer"], "none");
  EXPECT_EQ(row(all, "architecture")["answer"], "llama, layers 4");
  EXPECT_EQ(answer(all, "parameters"), 1115264);
  EXPECT_EQ(row(all, "parameters")["text"], "1.115 M");
  EXPECT_EQ(row(all, "input")["answer"], "text, at most 128 tokens");
  EXPECT_EQ(row(all, "output")["answer"], "text");
  EXPECT_EQ(answer(all, "training_days"), 70.0 / 86400);
  EXPECT_EQ(answer(all, "hardware_days"), 2 * 70.0 / 86400 * 4) << "2 nodes with 4 GPUs";
  EXPECT_EQ(answer(all, "inference_flop_per_token"), 2e6);
  EXPECT_EQ(answer(all, "files"), 1024);
  EXPECT_EQ(row(all, "sources")["answer"], "en, fi|<b>");
  EXPECT_EQ(row(all, "size")["answer"], "8 ranks on 2 nodes");
  EXPECT_EQ(row(all, "software")["answer"], "Kintsugi 0.1.0");
  EXPECT_EQ(row(all, "device")["answer"], "H200, cuda: H200");
  EXPECT_TRUE(row(all, "machine")["answer"].is_null());
  const Json& evaluations = all["evaluations"];
  ASSERT_EQ(evaluations.size(), 1u);
  EXPECT_EQ(evaluations[0]["metric"], "valid_loss");
  EXPECT_EQ(evaluations[0]["value"], 2.08);
  EXPECT_EQ(evaluations[0]["step"], 100);
}

// The first record has 1000 tokens in 0.5 s at 101 tokens/s: 50.5, as far as it says.
TEST_F(ModelDocumentation, ComputeIsTokensTimesFlopWithTheThresholdsBesideIt) {
  const double tokens = 99 * 1000 + std::round(101 * 0.5);
  Json all = model_documentation({make("a")});
  EXPECT_EQ(answer(all, "tokens"), tokens);
  EXPECT_DOUBLE_EQ(answer(all, "flop"), tokens * 1e19);
  EXPECT_EQ(row(all, "thresholds")["answer"],
            "at or above 10^23 (general-purpose), below 10^25 (systemic risk)");
  DocumentedRun small = make("a");
  small.facts.stages[0].training_flops_per_token = 1e10;
  EXPECT_EQ(row(model_documentation({small}), "thresholds")["answer"],
            "below 10^23 (general-purpose), below 10^25 (systemic risk)");
}

TEST_F(ModelDocumentation, EnergySaysWhatWasMeasuredAndWhere) {
  const Json all = model_documentation({make("a")});
  EXPECT_EQ(answer(all, "gpu"), 2);
  EXPECT_EQ(answer(all, "node"), 2.5);
  EXPECT_EQ(answer(all, "facility"), 3);
  EXPECT_TRUE(row(all, "cpu")["answer"].is_null());
  EXPECT_THAT(row(all, "gpu")["question"], HasSubstr("MWh: GPUs only"));
  EXPECT_THAT(row(all, "node")["question"], HasSubstr("without network, storage and cooling"));
  EXPECT_EQ(row(all, "gpu")["from"], "nvml counter, 50.0 % of the time of the nodes");
  EXPECT_EQ(row(all, "facility")["from"], "PUE 1.2");
  EXPECT_EQ(row(all, "cpu")["from"], "not measured in a");
}

TEST_F(ModelDocumentation, StagesAreSummedIfAllOfThemKnowTheirPart) {
  const Json both = model_documentation({make("a"), make("b", 50)});
  EXPECT_EQ(both["model"], "b");
  EXPECT_EQ(both["runs"].size(), 2u);
  EXPECT_EQ(answer(both, "gpu"), 4);
  EXPECT_DOUBLE_EQ(answer(both, "training_days"), (70.0 + 45.0) / 86400);
  EXPECT_EQ(answer(both, "files"), 1024) << "the same files count once";
  DocumentedRun unknown = make("c");
  fs::remove(unknown.directory / "energy.json");
  const Json all = model_documentation({make("a"), unknown});
  EXPECT_TRUE(row(all, "gpu")["answer"].is_null()) << "a part would look like the whole";
  EXPECT_THAT(row(all, "gpu")["from"], HasSubstr("not measured in c"));
  EXPECT_THAT(all["not_found"], Contains(Json("c: no readable energy.json")));
}

TEST_F(ModelDocumentation, RunsThatWereNotGivenAreNamed) {
  const DocumentedRun last = make("b");
  write("b/checkpoints/state/step-00000100/history.json",
        R"({"stages":[{"run":"a","first_step":0,"last_step":100}]})");
  const auto missing = [](const Json& all) { return all["not_found"].dump(); };
  EXPECT_THAT(missing(model_documentation({last})),
              HasSubstr("the run a (steps 0 to 100), which b continues, was not given"));
  EXPECT_THAT(missing(model_documentation({make("a"), last})), Not(HasSubstr("was not given")));
  write("b/config.yaml", "model:\n  init: hub/llama\n");
  const Json all = model_documentation({last});
  EXPECT_EQ(row(all, "derived_from")["answer"], "hub/llama");
  EXPECT_THAT(missing(all), HasSubstr("starts from the weights in hub/llama"));
}

TEST_F(ModelDocumentation, MissingAndDamagedFilesAreListed) {
  DocumentedRun run = make("a");
  run.facts = {.problem = "config.yaml is not valid"};
  for (const char* file : {"layout.json", "goodput.jsonl", "metrics.jsonl"})
    fs::remove(run.directory / file);
  fs::remove_all(run.directory / "checkpoints");
  write("a/config.yaml", "model: [1\n");
  write("a/energy.json", "{\"levels\": [");
  write("a/data.json", "[1, 2]");
  const Json all = model_documentation({run});
  for (const char* key : {"version", "sha256_of_checksums", "derived_from", "training_days",
                          "hardware_days", "flop", "gpu", "sources", "files", "software"})
    EXPECT_TRUE(row(all, key)["answer"].is_null()) << key;
  EXPECT_THAT(all["not_found"].dump(),
              AllOf(HasSubstr("no readable config.yaml"), HasSubstr("no readable energy.json"),
                    HasSubstr("no readable layout.json"), HasSubstr("no readable goodput.jsonl"),
                    HasSubstr("no complete checkpoint"), HasSubstr("metrics.jsonl"),
                    HasSubstr("config.yaml is not valid")));
  EXPECT_THAT(documentation_markdown(all), HasSubstr("not known"));
  EXPECT_EQ(documented_model_card(run, all), "");
}

// Sorted by name, both would be newer than the checkpoint that the run continues from.
TEST_F(ModelDocumentation, DamagedAndUnfinishedCheckpointsAreNotTheModel) {
  const DocumentedRun run = make("a");
  for (const char* name : {"step-00000100.damaged", "step-00000200.tmp"})
    write(fmt::format("a/checkpoints/{}/checksums.json", name), "{}\n");
  EXPECT_EQ(row(model_documentation({run}), "version")["answer"], "step-00000100");
}

// Without the FLOPs of one stage the compute is unknown, but all its tokens were trained.
TEST_F(ModelDocumentation, TokensOfAllStagesCountIfTheComputeOfOneIsUnknown) {
  const DocumentedRun run = make("a");  // its stages are "anneal" and "main"
  std::string records;
  for (int step = 1; step <= 4; ++step)
    records +=
        fmt::format(R"({{"step":{},"tokens":{},"stage":"{}","tokens_per_s":1000,"step_time_s":1}})"
                    "\n",
                    step, 1000 * step, step <= 2 ? "main" : "anneal");
  write("a/metrics.jsonl", records);
  DocumentedRun known = run;
  known.facts.stages = {{"main", 10}};
  const Json all = model_documentation({known});
  EXPECT_EQ(answer(all, "tokens"), 4000);
  EXPECT_TRUE(row(all, "flop")["answer"].is_null());
  known.facts.stages.push_back({"anneal", 20});
  EXPECT_EQ(answer(model_documentation({known}), "flop"), 2000 * 10 + 2000 * 20);
}

// Comparing each of these paths with all others would take minutes.
TEST_F(ModelDocumentation, ManyFilesAreCountedOnce) {
  const DocumentedRun run = make("a");
  constexpr int kFiles = 200'000;
  std::string files;
  for (int i = 0; i < 2 * kFiles; ++i)
    files += fmt::format(R"({}{{"path":"/corpora/of/this/run/{}.bin","bytes":2}})",
                         i > 0 ? "," : "", i % kFiles);
  write("a/data.json", R"({"files":[)" + files + "]}");
  EXPECT_EQ(answer(model_documentation({run}), "files"), 2.0 * kFiles);
}

TEST_F(ModelDocumentation, MarkdownAndTheCardOfTheCheckpoint) {
  const DocumentedRun run = make("a");
  const Json all = model_documentation({run});
  const std::string text = documentation_markdown(all);
  for (const char* part : {"# Model documentation of a\n", "## Architecture\n", "## Energy\n",
                           "## Evaluation\n", "## Runs\n", "## Not found in the runs\n",
                           "## To be added\n", "- legal name of the provider\n"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("<b>"))) << "names are no markup";
  EXPECT_THAT(text, Not(HasSubstr("fi|")));
  const std::string card = documented_model_card(run, all);
  EXPECT_THAT(card, AllOf(testing::StartsWith("# The card\n\nText.\n"),
                          HasSubstr("\n## Compute and time\n"), HasSubstr("\n## Energy\n"),
                          HasSubstr("2.08"), HasSubstr("- legal name of the provider\n")));
}

}  // namespace
}  // namespace kintsugi
