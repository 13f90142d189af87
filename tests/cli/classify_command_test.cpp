// A run with objective classification, and kintsugi classify and embed on what it trained.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/label_store.h"
#include "support/program_test.h"
#include "support/small_run.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string> kLabels = {"low", "mid: \"x\"", "high"};

std::string classifier_config(const std::string& store, const std::string& run,
                              const std::string& objective = "classification") {
  return small_config(store, run, "steps: 60, eval_every: 30, log_every: 60",
                      "objective: " + objective + "\n");
}

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

class ClassifierTest : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<TemporaryDirectory>();
    write_label_store(*shared_ / "texts", labelled_texts(400, 1), kLabels);
    run_training(classifier_config((*shared_ / "texts").string(), (*shared_ / "run").string(),
                                   "{kind: classification, class_weights: balanced}"));
  }
  static void TearDownTestSuite() { shared_.reset(); }
  static std::string file(const std::string& name) { return (*shared_ / name).string(); }
  static std::string text_of(const std::string& name) {
    std::ifstream stream(*shared_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  Outcome classify(const std::string& arguments, const std::string& input = "") {
    return run_kintsugi("classify --threads 1 --checkpoint '" + file("run") + "' " + arguments,
                        input);
  }
  Outcome embed(const std::string& arguments, const std::string& input = "") {
    return run_kintsugi("embed --threads 1 --checkpoint '" + file("run") + "' " + arguments, input);
  }
  static std::string mistake(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 2) << outcome.error;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }

 private:
  static inline std::unique_ptr<TemporaryDirectory> shared_;
};

TEST_F(ClassifierTest, LearnsAndReportsItsScores) {
  const std::vector<json> records = json_lines(text_of("run/metrics.jsonl"));
  const json& last = records.back();
  EXPECT_GT(last.at("valid_accuracy").get<double>(), 0.95);
  EXPECT_EQ(last.at("valid_micro_f1"), last.at("valid_accuracy"));
  EXPECT_GT(last.at("valid_macro_f1").get<double>(), 0.9);
  EXPECT_LT(last.at("loss").get<double>(), records.front().at("loss").get<double>() / 2);
  const json scores = json::parse(text_of("run/classification.json"));
  EXPECT_EQ(scores.at("step"), 60);
  EXPECT_EQ(scores.at("labels")[1].at("label"), kLabels[1]);
  EXPECT_EQ(scores.at("accuracy"), last.at("valid_accuracy"));
  const json config = json::parse(text_of("run/checkpoints/latest/config.json"));
  EXPECT_EQ(config.at("architectures")[0], "LlamaForSequenceClassification");
  EXPECT_EQ(config.at("id2label").at("2"), "high");
  EXPECT_THAT(text_of("run/config.yaml"), HasSubstr("labels: ["));
  EXPECT_THAT(text_of("run/log.txt"), HasSubstr("label \\ predicted"));
}

// The step of a recipe says what the command says, with any number of threads.
TEST_F(ClassifierTest, IsAFilterOfCorpora) {
  std::string lines;
  for (const auto& text : labelled_texts(60, 3)) lines += json{{"text", text.text}}.dump() + "\n";
  directory_.write("new.jsonl", lines + json{{"text", ""}}.dump() + "\n");
  directory_.write("labelled.jsonl", lines);
  directory_.write("keep.yaml", "steps:\n  - classify: {model: '" + file("run") +
                                    "', keep: [low, high], threshold: 0.7, member: level}\n");
  const Outcome labels = classify("--input labelled.jsonl");
  ASSERT_EQ(labels.code, 0) << labels.error;
  std::vector<std::string> expected;
  for (const json& one : json_lines(labels.out)) {
    const json& all = one["probabilities"];
    if (all["low"].get<double>() + all["high"].get<double>() < 0.7) continue;
    expected.push_back(fmt::format("{} {:.4f}", one["label"].get<std::string>(),
                                   one["probability"].get<double>()));
  }
  std::string first;
  for (const char* threads : {"1", "3"}) {
    const Outcome outcome = run_kintsugi(
        "data curate keep.yaml --input new.jsonl --output kept --overwrite "
        "--compression none --threads " +
        std::string(threads));
    ASSERT_EQ(outcome.code, 0) << outcome.error;
    const std::string kept = content_of("kept/documents-00000.jsonl");
    std::vector<std::string> found;
    for (const json& one : json_lines(kept))
      found.push_back(fmt::format("{} {:.4f}", one["level"].get<std::string>(),
                                  one["level_score"].get<double>()));
    EXPECT_THAT(found, testing::ElementsAreArray(expected));
    if (first.empty()) first = kept;
    EXPECT_EQ(kept, first);
    const json removed =
        json::parse(content_of("kept/curation.json"))["report"]["steps"][0]["removed"];
    EXPECT_EQ(removed["classify.empty"][""]["documents"], 1);
    EXPECT_EQ(removed["classify.other"][""]["documents"], 60 - expected.size());
  }
  EXPECT_GT(expected.size(), 20u);
  EXPECT_LT(expected.size(), 59u);
}

TEST_F(ClassifierTest, MistakesOfTheFilterAreOneSentence) {
  directory_.write("new.jsonl", json{{"text", "a"}}.dump() + "\n");
  const auto refused = [&](const std::string& settings) {
    directory_.write("r.yaml",
                     "steps:\n  - classify: {model: '" + file("run") + "'" + settings + "}\n");
    return mistake(run_kintsugi("data curate r.yaml --input new.jsonl --output out"));
  };
  EXPECT_THAT(refused(", keep: [lo]"), HasSubstr("has no label 'lo': its labels are low, "));
  EXPECT_THAT(refused(""), HasSubstr("give labels to keep, or a member for the label"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "out"));
}

TEST_F(ClassifierTest, LabelsTextsAndScoresThem) {
  std::string lines;
  const auto texts = labelled_texts(40, 2);
  for (std::size_t i = 0; i < texts.size(); ++i)
    lines += json{{"text", texts[i].text},
                  {"id", "t" + std::to_string(i)},
                  {"label", kLabels[static_cast<std::size_t>(texts[i].label)]}}
                 .dump() +
             "\n";
  directory_.write("new.jsonl", lines);
  const Outcome outcome = classify("--input new.jsonl --output out.jsonl");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.error, HasSubstr("40 of 40 documents have a label: accuracy"));
  const std::vector<json> results = json_lines(content_of("out.jsonl"));
  ASSERT_EQ(results.size(), texts.size());
  int right = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(results[i].at("id"), "t" + std::to_string(i));
    const auto& label = kLabels[static_cast<std::size_t>(texts[i].label)];
    right += results[i].at("label") == label ? 1 : 0;
    double sum = 0;
    for (const auto& [name, probability] : results[i].at("probabilities").items())
      sum += probability.get<double>();
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_EQ(results[i].at("probability"),
              results[i].at("probabilities").at(results[i].at("label").get<std::string>()));
  }
  EXPECT_GE(right, 38);
}

TEST_F(ClassifierTest, AnswersDoNotDependOnBatchesOrRanks) {
  std::string lines;
  for (const LabelledText& one : labelled_texts(30, 3)) lines += one.text + "\n\n";
  directory_.write("new.txt", lines);
  const std::vector<json> expected = json_lines(classify("--input - --batch-tokens 64", lines).out);
  ASSERT_EQ(expected.size(), 30U);
  for (const std::string& command :
       {std::string("\"$kintsugi\" classify --input new.txt --batch-tokens 500"),
        std::string("mpirun -n 3 \"$kintsugi\" classify --input new.txt")}) {
    const Outcome outcome = run_in_shell(
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1; " +
        command + " --threads 1 --checkpoint '" + file("run") + "'");
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    const std::vector<json> lines_of = json_lines(outcome.out);
    ASSERT_EQ(lines_of.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(lines_of[i].at("label"), expected[i].at("label"));
      EXPECT_NEAR(lines_of[i].at("probability").get<double>(),
                  expected[i].at("probability").get<double>(), 1e-5);
    }
  }
}

TEST_F(ClassifierTest, CutsLongTextsAndSaysSo) {
  const Outcome outcome = classify("--input - --top 1", std::string(100, 'b') + "\nab\n");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.error, HasSubstr("1 of 2 documents are longer than 64 tokens"));
  EXPECT_EQ(json_lines(outcome.out)[0].at("probabilities").size(), 1U);
}

TEST_F(ClassifierTest, NamesTheLineOfABadInput) {
  const auto complaint = [&](const std::string& lines) {
    directory_.write("bad.jsonl", lines);
    const std::string error = mistake(classify("--input bad.jsonl --output out.jsonl"));
    EXPECT_FALSE(std::filesystem::exists(directory_ / "out.jsonl"));
    EXPECT_FALSE(std::filesystem::exists(directory_ / "out.jsonl.tmp"));
    return error;
  };
  EXPECT_THAT(complaint("{\"text\": \"ab\"}\n{\"text\": 3}\n"),
              AllOf(HasSubstr("bad.jsonl, line 2"), HasSubstr("--text-key")));
  EXPECT_THAT(complaint("{\"text\": \"ab\"\n"), HasSubstr("line 1: not valid JSON"));
  EXPECT_THAT(complaint("{\"text\": \"\"}\n"), HasSubstr("line 1: the text is empty"));
  EXPECT_THAT(complaint("\n{\"text\": \"a\", \"label\": \"other\"}\n"),
              HasSubstr("line 2: the model has no label 'other'"));
  EXPECT_THAT(complaint("{\"text\": \"a\", \"label\": 3}\n"), HasSubstr("no label '3'"));
  EXPECT_THAT(complaint("\n"), HasSubstr("has no documents"));
}

TEST_F(ClassifierTest, OtherCommandsNameClassify) {
  for (const char* command :
       {"generate --prompt ab", "chat --chat-template chatml", "eval --text ab"}) {
    const Outcome outcome =
        run_kintsugi(std::string(command) + " --threads 1 --checkpoint '" + file("run") + "'");
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.error, HasSubstr("use kintsugi classify")) << command;
  }
}

TEST_F(ClassifierTest, OtherLabelsAreRefused) {
  write_label_store(directory_ / "other", labelled_texts(60, 4, 2), {"a", "b"});
  const std::string other = (directory_ / "other").string();
  std::string config = classifier_config(other, (directory_ / "run2").string());
  config.replace(config.find("model: {"), config.find("}\ndata") - config.find("model: {"),
                 "model: {init: \"" + file("run") + "\"");
  try {
    run_training(config);
    FAIL() << "trained";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("has the labels a, b"),
                      HasSubstr("the classifier in model.init has low"), HasSubstr("--labels")));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "run2"));
}

TEST_F(ClassifierTest, EmbedsDocuments) {
  const auto texts = labelled_texts(25, 5);
  write_label_store(directory_ / "store", texts, kLabels);
  const Outcome stored =
      embed("--input store --pool last --normalize --output e.safetensors --batch-tokens 70");
  EXPECT_EQ(stored.code, 0) << stored.error;
  const SafetensorsFile binary(directory_ / "e.safetensors");
  EXPECT_EQ(binary.find("embeddings")->shape, (std::vector<std::int64_t>{25, 32}));
  EXPECT_EQ(binary.find("ids")->dtype_name, "I64");
  std::vector<float> numbers(25 * 32);
  std::memcpy(numbers.data(), binary.bytes(*binary.find("embeddings")).data(), numbers.size() * 4);
  std::vector<std::int32_t> labels(25);
  std::memcpy(labels.data(), binary.bytes(*binary.find("labels")).data(), labels.size() * 4);
  const json names = json::parse(binary.metadata().at("labels"));
  std::string lines;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(names.at(static_cast<std::size_t>(labels[i])),
              kLabels[static_cast<std::size_t>(texts[i].label)]);
    lines += texts[i].text + "\n";
  }
  const Outcome text = embed("--input - --pool last --normalize --output e.jsonl", lines);
  EXPECT_EQ(text.code, 0) << text.error;
  const std::vector<json> objects = json_lines(content_of("e.jsonl"));
  ASSERT_EQ(objects.size(), 25U);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    double squares = 0;
    for (std::size_t j = 0; j < 32; ++j) {
      const double value = objects[i].at("embedding")[j].get<double>();
      EXPECT_NEAR(value, numbers[i * 32 + j], 1e-5);
      squares += value * value;
    }
    EXPECT_NEAR(squares, 1, 1e-5);
    EXPECT_EQ(objects[i].at("id"), i);
  }
  EXPECT_THAT(mistake(embed("--input store --output e.npy")),
              HasSubstr("e.npy: the name must end"));
  EXPECT_THAT(mistake(embed("--input missing --output f.jsonl")), HasSubstr("missing"));
}

}  // namespace
}  // namespace kintsugi
