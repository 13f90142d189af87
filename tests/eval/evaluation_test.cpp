// Whole evaluations, with a model that is a formula. The expected figures are those that
// lm-evaluation-harness 0.4 reports for the same tasks and the same formula behind a server.
#include "eval/run/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "eval/run/replicated_model.h"
#include "eval/run/results.h"
#include "eval/run/translation.h"
#include "eval/scoring.h"
#include "support/errors.h"
#include "support/formula_model.h"
#include "support/paths.h"
#include "support/temporary_directory.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kExamples = source_directory() + "/examples/eval";

TEST(PythonRandom, DrawsWhatPythonDraws) {
  PythonRandom small(1234);
  EXPECT_EQ(small.random(), 0.96645353569213877);
  EXPECT_EQ(small.below(10), 7u);
  EXPECT_EQ(small.below(1000000007), 125467289u);
  EXPECT_THAT(small.sample(10, 3), ElementsAre(0, 1, 9));
  EXPECT_THAT(small.sample(50, 4), ElementsAre(42, 44, 5, 6)) << "more than Python copies";
  EXPECT_THAT(small.sample(200, 26),
              ElementsAre(196, 90, 60, 4, 7, 199, 88, 165, 159, 123, 157, 118, 38, 23, 46, 182, 29,
                          3, 128, 124, 63, 16, 170, 138, 119, 17));
  EXPECT_THAT(small.sample(12, 3), ElementsAre(9, 10, 1));
  EXPECT_EQ(small.choice(77), 39u);
  PythonRandom large(std::uint64_t{1} << 40);
  EXPECT_EQ(large.random(), 0.1036394562812375) << "a seed of two words";
}

EvalDocument evaluated(const std::vector<std::string>& tasks,
                       const EvaluationOptions& options = {}) {
  const TaskEvaluation evaluation(find_tasks(tasks, {kExamples}), options);
  FormulaModel model;
  return results_json(evaluation, score_evaluation(evaluation, evaluation.ask(model, {}), {}), {});
}

TEST(Evaluation, EqualsTheHarnessInEveryTypeOfTask) {
  const EvalDocument results =
      evaluated({"choices", "last_word", "whole_texts", "sums", "phrases"})["results"];
  const std::map<std::string, std::map<std::string, double>> expected = {
      {"capitals",
       {{"acc,none", 0.25},
        {"acc_stderr,none", 0.16366341767699427},
        {"acc_norm,none", 0.5},
        {"acc_norm_stderr,none", 0.1889822365046136},
        {"brier_score,none", 1.362927303058826},
        {"acc_mutual_info,none", 0.375},
        {"acc_mutual_info_stderr,none", 0.18298126367784995}}},
      {"agreement", {{"acc,none", 0.4}, {"acc_stderr,none", 0.24494897427831783}}},
      {"last_word",
       {{"perplexity,none", 17014091431245.355},
        {"perplexity_stderr,none", 1.341922278528748e+16},
        {"acc,none", 0}}},
      {"whole_texts",
       {{"word_perplexity,none", 155098766207.51312},
        {"byte_perplexity,none", 167.89325067266984},
        {"bits_per_byte,none", 7.391400424714441}}},
      {"sums", {{"exact_match,first-number", 0}, {"exact_match,as-is", 0}}},
      {"phrases",
       {{"bleu,none", 0},
        {"chrf,none", 7.3106426188018645},
        {"chrf_stderr,none", 1.6175408554779558}}},
      {"choices", {{"acc,none", 0.3076923076923077}, {"acc_stderr,none", 0.13740858372430334}}}};
  for (const auto& [task, values] : expected)
    for (const auto& [key, value] : values)
      EXPECT_NEAR(results[task][key].get<double>(), value, 1e-11 * std::max(1.0, value))
          << task << " " << key;
  EXPECT_EQ(results["capitals"]["brier_score_stderr,none"], "N/A");
  EXPECT_EQ(results["choices"]["sample_len"], 13);
}

// The harness hashes each document, prompt and target; a task has the hash of these.
TEST(Evaluation, PromptsAndTargetsAreThoseOfTheHarness) {
  const TaskEvaluation evaluation(
      find_tasks({"choices", "last_word", "whole_texts", "sums", "phrases"}, {kExamples}), {});
  FormulaModel model;
  const std::vector<TaskAnswers> answers = evaluation.ask(model, {});
  const EvaluationResults results = score_evaluation(evaluation, answers, {.bootstrap_samples = 0});
  TemporaryDirectory directory;
  const auto path = write_results(directory.path() / "new", evaluation, results,
                                  {.model = "runs/a:b", .start_s = 1.5e9}, &answers);
  EXPECT_EQ(path.parent_path().filename(), "runs__a__b");
  const EvalDocument json = EvalDocument::parse(content_of(path));
  const std::map<std::string, std::string> expected = {
      {"capitals", "52fd46b67c0a9bdca2e28f3c331cadd31e2f278c1112b7db9cd9401290054b20"},
      {"agreement", "c61a79b839c07674dfb50b134adee5411de43f1daf9ba290b7da72504cdb540e"},
      {"last_word", "9fca40154723a0b36b8c2156baf048b8169051279c8f4338b859033b46d7303c"},
      {"whole_texts", "5da09fa3665cfad5aa52ab5aa3df997e35e512ff315dd8e8341ad612f2fff6e3"},
      {"sums", "064400fb4a76757f179986b6ec146c77a154b982333d3181b2804b7a688f4ce2"},
      {"phrases", "5c9be5c981da91722689aadae644ec0609f93d6f2ff06de550fe275537f89f43"}};
  for (const auto& [task, hash] : expected) EXPECT_EQ(json["task_hashes"][task], hash) << task;
  EXPECT_EQ(json["n-shot"]["capitals"], 3);
  EXPECT_EQ(json["results"]["last_word"]["perplexity_stderr,none"], "N/A") << "no bootstrap";
  EXPECT_EQ(json["n-samples"]["sums"]["effective"], 6);
  const auto samples = samples_json(evaluation.tasks()[5], results.tasks[5], answers[5]);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[0]["arguments"]["gen_args_0"]["arg_0"],
            "it is raining today=tänään sataa\ngood morning=");
  EXPECT_EQ(samples[0]["resps"][0][0], "aegharcpjzacbzabauevfjud");
}

TEST(Evaluation, LimitAndExamplesCanBeOverridden) {
  const EvalDocument two = evaluated({"capitals"}, {.shots = 0, .limit = 2});
  EXPECT_EQ(two["results"]["capitals"]["sample_len"], 2);
  EXPECT_EQ(two["n-samples"]["capitals"]["original"], 8);
  EXPECT_EQ(two["n-shot"]["capitals"], 0);
  EXPECT_EQ(evaluated({"capitals"}, {.limit = 0.3})["results"]["capitals"]["sample_len"], 3);
  EXPECT_THAT(user_error_of([] { evaluated({"capitals"}, {.shots = 8}); }),
              AllOf(HasSubstr("capitals.jsonl line 1"), HasSubstr("9 examples")));
}

TEST(Evaluation, EqualRequestsAreComputedOnce) {
  TemporaryDirectory directory;
  directory.write("d.jsonl", "{\"q\": \"a\"}\n{\"q\": \"a\"}\n{\"q\": \"b\"}\n");
  const std::string file = directory.write(
      "t.yaml",
      "task: t\noutput_type: multiple_choice\ndataset_path: json\ntest_split: test\n"
      "dataset_kwargs: {data_files: {test: d.jsonl}}\ndoc_to_text: '{{q}}'\ndoc_to_target: 0\n"
      "doc_to_choice: [x, y]\nmetric_list: [{metric: acc}, {metric: mcc}]\n");
  const TaskEvaluation evaluation(find_tasks({file}, {}), {});
  FormulaModel model;
  std::size_t last = 0;
  const auto answers = evaluation.ask(model, [&](std::size_t done, std::size_t all) {
    EXPECT_EQ(all, 4u);
    last = done;
  });
  EXPECT_EQ(model.scored(), 4u);
  EXPECT_EQ(last, 4u);
  EXPECT_EQ(answers[0][0].scores[1].log_probability, answers[0][1].scores[1].log_probability);
  EXPECT_EQ(
      score_evaluation(evaluation, answers, {.bootstrap_samples = 10}).tasks[0].metrics[1].value, 0)
      << "one class only";
}

// Every number of ranks gives the same bits.
TEST(Evaluation, RanksShareTheRequests) {
  const TaskEvaluation evaluation(find_tasks({kExamples}, {}), {.limit = 3});
  FormulaModel alone;
  const ScoreOptions options{.bootstrap_samples = 0};
  const std::string expected =
      results_json(evaluation, score_evaluation(evaluation, evaluation.ask(alone, {}), options), {})
          .dump();
  for (const int ranks : {2, 5}) {
    run_ranks(ranks, [&](World& own) {
      const auto replicas = own.split("replicas", 0, own.rank());
      FormulaModel model;
      ReplicatedModel shared(model, *replicas);
      const auto results = score_evaluation(evaluation, evaluation.ask(shared, {}), options);
      EXPECT_EQ(results_json(evaluation, results, {}).dump(), expected);
      EXPECT_LT(model.scored(), alone.scored());
    });
  }
}

TEST(Evaluation, TooLongContextsAreShortenedOnTheLeft) {
  TemporaryDirectory directory;
  directory.write("d.jsonl", R"({"q": "0123456789", "a": "yz"})");
  const std::string common =
      "dataset_path: json\ntest_split: test\ndataset_kwargs: {data_files: {test: d.jsonl}}\n"
      "doc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n";
  const auto score = [&](const std::string& text, std::size_t max_length) {
    directory.write("d.jsonl", R"({"q": ")" + text + R"(", "a": "yz"})");
    const std::string file =
        directory.write("t.yaml", "task: t\noutput_type: loglikelihood\n" + common);
    const TaskEvaluation evaluation(find_tasks({file}, {}), {});
    FormulaModel model(max_length);
    return evaluation.ask(model, {})[0][0].scores[0].log_probability;
  };
  EXPECT_EQ(score("0123456789", 4), score("789", 100)) << "4 tokens are read: 789y";
  EXPECT_THAT(user_error_of([&] { score("0123", 1); }),
              AllOf(HasSubstr("d.jsonl line 1"), HasSubstr("max_length")));
}

TEST(Evaluation, GroupsAreNestedAndTagsFound) {
  TemporaryDirectory directory;
  directory.write("outer.yaml",
                  "group: outer\ntask: [choices, last_word]\naggregate_metric_list: [{metric: acc, "
                  "weight_by_size: false}]\n");
  const TaskSet set = find_tasks({directory.path() / "outer.yaml"}, {kExamples});
  ASSERT_EQ(set.groups.size(), 2u);
  EXPECT_EQ(set.groups[0].group.name, "choices");
  EXPECT_TRUE(set.groups[0].nested);
  EXPECT_EQ(set.groups[1].tasks.size(), 3u);
  const TaskEvaluation evaluation(set, {});
  FormulaModel model;
  const EvaluationResults results =
      score_evaluation(evaluation, evaluation.ask(model, {}), {.bootstrap_samples = 0});
  EXPECT_NEAR(results.groups[1].metrics[0].value, (0.25 + 0.4 + 0) / 3, 1e-12);
  const std::string table = results_table(evaluation, {results, results}, {"one", "two"});
  EXPECT_THAT(table, AllOf(StartsWith("|"), HasSubstr("| - choices"), HasSubstr("|  - capitals"),
                           HasSubstr("one"), HasSubstr("0.2167")));
  EXPECT_EQ(find_tasks({"geography"}, {kExamples}).tasks.at(0).name, "capitals");
  EXPECT_THAT(user_error_of([] { find_tasks({"capital"}, {kExamples}); }),
              HasSubstr("did you mean 'capitals'"));
  directory.write("a.yaml", "group: a\ntask: [b]\n");
  directory.write("b.yaml", "group: b\ntask: [a]\n");
  EXPECT_THAT(user_error_of([&] { find_tasks({"a"}, {directory.path()}); }),
              HasSubstr("contain each other"));
  directory.write("c.yaml", "group: a\ntask: [capitals]\n");
  EXPECT_THAT(user_error_of([&] { find_tasks({"a"}, {directory.path()}); }),
              AllOf(HasSubstr("a.yaml"), HasSubstr("c.yaml")));
}

class WrongData : public testing::Test {
 protected:
  void run(const std::string& data, const std::string& more = "") {
    directory_.write("d.jsonl", data);
    const std::string file = directory_.write(
        "t.yaml",
        "task: t\noutput_type: multiple_choice\ndataset_path: json\ntest_split: test\n"
        "dataset_kwargs: {data_files: {test: d.jsonl}}\ndoc_to_text: '{{q}}'\ndoc_to_target: g\n"
        "doc_to_choice: '{{c}}'\n" +
            more);
    const TaskEvaluation evaluation(find_tasks({file}, {}), {});
    FormulaModel model;
    evaluation.ask(model, {});
  }
  std::string error(const std::string& data, const std::string& more = "") {
    return user_error_of([&] { run(data, more); });
  }
  TemporaryDirectory directory_;
};

TEST_F(WrongData, IsNamedWithFileAndLine) {
  const std::string good = R"({"q": "a", "c": ["x", "y"], "g": 0})"
                           "\n";
  EXPECT_THAT(error(good + "\n{\"q\": \"b\", \"g\": 1}\n"),
              AllOf(HasSubstr("d.jsonl line 3"), HasSubstr("'c'")));
  EXPECT_THAT(error(good + "[1]\n"), HasSubstr("d.jsonl line 2"));
  EXPECT_THAT(error(""), HasSubstr("no documents"));
  EXPECT_THAT(error("[{\"q\": \"a\", \"c\": [\"x\"], \"g\": 0}, 7]"), HasSubstr("document 2"));
  EXPECT_THAT(error(good, "num_fewshot: 2\n"), HasSubstr("2 examples"));
  EXPECT_THAT(error(good + R"({"q": "a", "c": ["x", "y", "z"], "g": 0})",
                    "metric_list: [{metric: brier_score}]\n"),
              AllOf(HasSubstr("d.jsonl line 2"), HasSubstr("brier_score")));
  EXPECT_THAT(error(R"({"q": " ", "c": ["x"], "g": 0})"),
              AllOf(HasSubstr("line 1"), HasSubstr("white space")));
  run(R"({"q": "a", "c": ["x"], "g": 0})");  // one choice is always right
  run("[" + good + "]");                     // a list of documents
}

TEST(Evaluation, MatthewsCorrelation) {
  // (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)) with 2, 1, 1, 1
  const std::vector<std::int64_t> gold = {1, 1, 1, 0, 0}, predicted = {1, 1, 0, 1, 0};
  EXPECT_NEAR(matthews_correlation(gold, predicted), (2 * 1 - 1 * 1) / std::sqrt(3 * 3 * 2 * 2),
              1e-15);
  EXPECT_EQ(matthews_correlation(gold, gold), 1);
  EXPECT_EQ(matthews_correlation(gold, std::vector<std::int64_t>(5, 1)), 0);
}

TEST(Translation, PromptHasExamplesAndTheEnd) {
  TranslationPrompt prompt{.sources = {"a", "b"}, .targets = {"A", "B"}};
  EXPECT_EQ(prompt.text("c"), "a=A\nEND\n\nb=B\nEND\n\nc=");
  FormulaModel model;
  const Segments texts = translate(model, prompt, {"c", "d"}, 16, {});
  TextRequest request{model.encode(prompt.text("d")), {.until = {"END"}, .max_gen_toks = 16}};
  EXPECT_THAT(texts, testing::SizeIs(2));
  EXPECT_EQ(texts[1], model.generate({&request, 1}, {})[0]);
  FormulaModel small(20);
  EXPECT_THAT(user_error_of([&] { translate(small, prompt, {"c"}, 16, {}); }),
              AllOf(HasSubstr("source 1"), HasSubstr("--shots")));
  prompt.form = "{trg} from {src}";
  EXPECT_THAT(user_error_of([&] { prompt.check(); }), HasSubstr("{trg} from {src}"));
}

}  // namespace
}  // namespace kintsugi
