// Tasks that are evaluated during training (train.eval_tasks).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "comm/communicator.h"
#include "serve/inference_engine.h"
#include "support/rank_trainers.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;

struct Question {
  std::string text;
  std::vector<std::string> choices;
  std::size_t right;
};
const std::vector<Question> kQuestions = {{"the river carries", {"the valley.", "qqqq"}, 0},
                                          {"a stone", {"xx", "opens a door", "keeps"}, 1},
                                          {"her brother follows", {"zz zz", "seven doors."}, 0}};

class EvalTasksTest : public testing::Test {
 protected:
  EvalTasksTest() {
    std::string questions;
    for (const Question& one : kQuestions)
      questions +=
          Json{{"q", one.text}, {"choices", one.choices}, {"right", one.right}}.dump() + "\n";
    const std::string data = directory_.write("questions.jsonl", questions);
    fs::create_directories(directory_ / "tasks");
    const auto task = [&](const std::string& name, const std::string& keys) {
      directory_.write("tasks/" + name + ".yaml",
                       fmt::format("task: {}\ndataset_path: json\ntest_split: test\n"
                                   "dataset_kwargs: {{data_files: {{test: \"{}\"}}}}\n{}",
                                   name, data, keys));
    };
    task("choices",
         "output_type: multiple_choice\ndoc_to_text: \"{{q}}\"\ndoc_to_choice: \"{{choices}}\"\n"
         "doc_to_target: \"{{right}}\"\nmetric_list: [{metric: acc}]\n");
    task("last",
         "output_type: loglikelihood\ndoc_to_text: \"{{q}}\"\n"
         "doc_to_target: \"{{' ' + choices[0]}}\"\n"
         "metric_list: [{metric: perplexity}, {metric: acc}]\n");
  }

  std::string config(const std::string& name, const std::string& train,
                     const std::string& rest = "") {
    return small_config(corpus_, directory_ / name, train, rest);
  }
  std::string tasks() const { return "eval_tasks: [\"" + (directory_ / "tasks").string() + "\"]"; }
  std::vector<Json> metrics(const std::string& name) const {
    std::vector<Json> records;
    std::ifstream file(directory_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) records.push_back(Json::parse(line));
    return records;
  }
  static std::map<std::string, double> values_of(const Json& record) {
    std::map<std::string, double> values;
    if (record.contains("eval"))
      for (const Json& one : record.at("eval"))
        values[one.at("task").get<std::string>() + "/" + one.at("metric").get<std::string>()] =
            one.at("value");
    return values;
  }
  std::string refusal(const std::string& yaml) {
    try {
      run_training(yaml);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
};

// Scores continuations with a saved checkpoint, one at a time. Of long texts, a run reads the last
// 24 tokens before the one that is predicted.
class CheckpointScores {
 public:
  explicit CheckpointScores(const fs::path& checkpoint)
      : engine_(*backend_, alone_, checkpoint, {.max_sequences = 1}) {}

  double log_probability(const std::string& context, const std::string& continuation) {
    std::vector<std::int32_t> ids;
    for (const char c : context + continuation) ids.push_back(static_cast<unsigned char>(c));
    if (ids.size() > 25) ids.erase(ids.begin(), ids.end() - 25);
    const std::int64_t first = std::ssize(ids) - std::ssize(continuation);
    double sum = 0;
    InferenceListener listener;
    listener.on_scores = [&](const std::vector<SampledToken>& tokens) {
      for (const SampledToken& token : tokens) sum += token.logprob.value();
    };
    listener.on_token = [](const SampledToken&) { return true; };
    listener.on_end = [](InferenceEnd, const std::string& error) { EXPECT_EQ(error, ""); };
    engine_.submit({.prompt = ids, .score_from = first}, listener);
    engine_.run();
    return sum;
  }

 private:
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
  LocalCommunicator alone_ = LocalCommunicator("alone");
  InferenceEngine engine_;
};

TEST_F(EvalTasksTest, ResultsAreThoseOfTheCheckpoint) {
  run_training(
      config("run", "steps: 6, eval_every: 0, checkpoint_every: 3, " + tasks(), "threads: 2\n"));
  const auto records = metrics("run");
  ASSERT_EQ(records.size(), 6u);
  for (const std::size_t at : {0, 1, 3, 4}) EXPECT_FALSE(records[at].contains("eval"));
  for (const std::int64_t step : {3, 6}) {
    CheckpointScores checkpoint(directory_ / "run" / "checkpoints" /
                                fmt::format("step-{:08}", step));
    double right = 0, nats = 0;
    for (const Question& one : kQuestions) {
      std::vector<double> scores;
      for (const std::string& choice : one.choices)
        scores.push_back(checkpoint.log_probability(one.text, " " + choice));
      const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
      right += static_cast<std::size_t>(best) == one.right ? 1 : 0;
      nats -= scores[0];
    }
    const auto found = values_of(records[static_cast<std::size_t>(step - 1)]);
    EXPECT_DOUBLE_EQ(found.at("choices/acc"), right / 3);
    EXPECT_NEAR(std::log(found.at("last/perplexity")), nats / 3, 1e-5);
  }
}

// In every layout, and at other steps than the checkpoints. The training itself does not change.
TEST_F(EvalTasksTest, LayoutsAgreeAndTrainingGoesOn) {
  const CapturedLog log;
  const std::string train = "steps: 3, eval_every: 0, checkpoint_every: 0, save: false, ";
  const auto losses = [&](const std::string& name) {
    std::vector<double> found;
    for (const Json& record : metrics(name)) found.push_back(record.at("loss"));
    return found;
  };
  const std::string every = "eval_tasks_every: 2, " + tasks();
  train_on_ranks(1, config("one", train + every));
  const auto expected = values_of(metrics("one").back());
  ASSERT_EQ(expected.size(), 3u);
  for (const auto& [ranks, layout] : std::vector<std::pair<int, std::string>>{
           {2, "tp: 2, sequence_parallel: true"}, {2, "pp: 2"}, {2, "cp: 2"}, {3, "zero: 3"}}) {
    SCOPED_TRACE(layout);
    const std::string rest = "layout: {" + layout + "}\n", name = std::to_string(ranks) + layout;
    train_on_ranks(ranks, config(name, train + every, rest));
    train_on_ranks(ranks, config(name + " plain", train, rest));
    EXPECT_EQ(losses(name), losses(name + " plain")) << "bit for bit";
    EXPECT_TRUE(values_of(metrics(name)[0]).empty());
    EXPECT_FALSE(values_of(metrics(name)[1]).empty());
    for (const auto& [metric, value] : values_of(metrics(name).back()))
      EXPECT_NEAR(value, expected.at(metric), 1e-3 * expected.at(metric)) << metric;
  }
}

TEST_F(EvalTasksTest, AResumedRunEvaluatesNoStepTwice) {
  const std::string train = "eval_every: 0, checkpoint_every: 4, eval_tasks_every: 3, " + tasks();
  run_training(config("run", "steps: 7, " + train));
  // As if the run had been lost after step 7: the checkpoint of step 4 is the newest.
  fs::remove_all(directory_ / "run" / "checkpoints" / "step-00000007");
  fs::remove(directory_ / "run" / "checkpoints" / "latest");
  fs::create_symlink("step-00000004", directory_ / "run" / "checkpoints" / "latest");
  run_training(config("run", "steps: 9, " + train));
  std::map<std::int64_t, int> evaluations;
  for (const Json& record : metrics("run"))
    if (record.contains("eval")) ++evaluations[record.at("step")];
  EXPECT_EQ(evaluations, (std::map<std::int64_t, int>{{3, 1}, {6, 1}, {7, 1}, {9, 1}}));
}

TEST_F(EvalTasksTest, LimitsTheDocuments) {
  run_training(config("run", "steps: 2, eval_every: 0, eval_tasks_limit: 1, " + tasks()));
  std::ifstream file(directory_ / "run" / "log.txt");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, HasSubstr("tasks: choices (1 document), last (1 document)"));
}

TEST_F(EvalTasksTest, RefusesWhatItCannotEvaluateBeforeTheRun) {
  const std::string plain = "steps: 2, eval_every: 0, ";
  EXPECT_THAT(refusal(config("a", plain + "eval_tasks: [nowhere.yaml]")),
              HasSubstr("train.eval_tasks: "));
  directory_.write(
      "texts.yaml",
      "task: texts\ndataset_path: json\ntest_split: test\noutput_type: generate_until\n"
      "dataset_kwargs: {data_files: {test: x.jsonl}}\ndoc_to_text: a\n"
      "doc_to_target: b\n");
  EXPECT_THAT(refusal(config(
                  "b", plain + "eval_tasks: [\"" + (directory_ / "texts.yaml").string() + "\"]")),
              HasSubstr("task texts are generated texts"));
  EXPECT_FALSE(fs::exists(directory_ / "b")) << "nothing is written";
  directory_.write("questions.jsonl", "{\"q\": 1}\nno JSON\n");
  EXPECT_THAT(refusal(config("c", plain + tasks())), HasSubstr("questions.jsonl"));
}

}  // namespace
}  // namespace kintsugi
