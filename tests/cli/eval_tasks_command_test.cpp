// kintsugi eval --tasks and eval translate, as a user runs them.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "support/compress.h"
#include "support/mpirun.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class EvalTasks : public ProgramTest {
 protected:
  // A small model of bytes with random weights, trained for one step.
  static void SetUpTestSuite() {
    model_ = new TemporaryDirectory;
    std::string corpus;
    for (int i = 0; i < 60; ++i) corpus += "A line of text, number " + std::to_string(i) + ".\n";
    model_->write("corpus.txt", corpus);
    model_->write("run.yaml",
                  "run: {dir: run, seed: 3}\n"
                  "model: {preset: llama-tiny, hidden_size: 16, layers: 1, heads: 2, kv_heads: 1, "
                  "ffn_size: 32, max_positions: 512}\n"
                  "data: {train: [{path: corpus.txt}], valid_fraction: 0, sequence_length: 16}\n"
                  "batch: {global: 2, micro: 2}\noptimizer: {warmup_steps: 0}\n"
                  "train: {steps: 1, eval_every: 0}\n"
                  "device: cpu\nthreads: 1\n");
    const std::string command = "cd '" + model_->path().string() + "' && '" + kintsugi_binary() +
                                "' train run.yaml >train.txt 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << kintsugi::content_of(*model_ / "train.txt");
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  std::string checkpoint() const { return "--checkpoint '" + (*model_ / "run").string() + "' "; }
  std::string examples() const { return "'" + source_directory() + "/examples/eval'"; }
  json results(const std::string& arguments) {
    const Outcome outcome =
        run_kintsugi("eval " + checkpoint() + arguments + " --json --threads 1 --bootstrap 1000");
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return json::parse(outcome.out, nullptr, false)["results"];
  }
  std::string mistake(const std::string& arguments) {
    const Outcome outcome = run_kintsugi("eval " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << outcome.error;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
  // A task with choices: the documents have the columns q, c and g.
  std::string write_task(const std::string& documents, const std::string& more = "") {
    directory_.write("d.jsonl", documents);
    directory_.write("t.yaml",
                     "task: t\noutput_type: multiple_choice\ndataset_path: json\ntest_split: test\n"
                     "dataset_kwargs: {data_files: {test: d.jsonl}}\ndoc_to_text: '{{q}}'\n"
                     "doc_to_target: g\ndoc_to_choice: '{{c}}'\n" +
                         more);
    return checkpoint() + "--tasks t.yaml --threads 1 ";
  }
  static TemporaryDirectory* model_;
};
TemporaryDirectory* EvalTasks::model_ = nullptr;

TEST_F(EvalTasks, RunsTheExamples) {
  const json all = results("--tasks " + examples() + " --limit 3 --output out");
  EXPECT_EQ(all.size(), 7u);
  for (const char* task : {"capitals", "agreement", "choices"}) {
    EXPECT_GE(all[task]["acc,none"], 0) << task;
    EXPECT_LE(all[task]["acc,none"], 1) << task;
  }
  // Weights after one step are almost random: each byte has a probability of about 1/256.
  EXPECT_NEAR(all["whole_texts"]["bits_per_byte,none"], 8, 0.5);
  EXPECT_EQ(results("--tasks " + examples() + " --limit 3 --max-sequences 1"), all)
      << "the batch size changes nothing";
  int samples = 0, files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory_ / "out")) {
    files += entry.is_regular_file() ? 1 : 0;
    samples += entry.path().filename().string().starts_with("samples_") ? 1 : 0;
  }
  EXPECT_EQ(samples, 6);
  EXPECT_EQ(files, 7);
  const Outcome table = run_kintsugi("eval " + checkpoint() + checkpoint() + "--tasks " +
                                     examples() + "/agreement.yaml --threads 1");
  EXPECT_THAT(table.out, AllOf(HasSubstr("|agreement|"), HasSubstr("checkpoints/latest")));
}

// A curation finds two of five questions in a corpus; the evaluation scores the other three.
class Contamination : public EvalTasks {
 protected:
  void SetUp() override {
    for (int i = 0; i < 5; ++i) {
      std::string question;
      for (int word = 0; word < 12; ++word)
        question += "q" + std::to_string(i) + "w" + std::to_string(word) + " ";
      questions_.push_back(question);
    }
    write_questions({0, 1, 2, 3, 4});
    directory_.write("r.yaml",
                     "steps:\n  - decontaminate: {tasks: [t.yaml], words: 8, remove: false}\n");
    json leak1 = {{"text", "before " + questions_[1] + " after"}},
         leak3 = {{"text", questions_[3]}};
    directory_.write("corpus.jsonl",
                     leak1.dump() + "\n" + leak3.dump() + "\n" + leak3.dump() + "\n");
    const Outcome outcome =
        run_kintsugi("data curate r.yaml --input corpus.jsonl --output curated");
    EXPECT_EQ(outcome.code, 0) << outcome.error;
  }
  void write_questions(const std::vector<std::size_t>& order, const std::string& more = "") {
    std::string documents;
    for (const std::size_t i : order)
      documents +=
          json({{"q", questions_[i]}, {"c", {"yes", "no", "perhaps"}}, {"g", i % 3}}).dump() + "\n";
    arguments_ = write_task(documents, more);
  }
  json evaluate(const std::string& arguments) {
    const Outcome outcome =
        run_kintsugi("eval " + arguments_ + arguments + " --json --bootstrap 0");
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return json::parse(outcome.out, nullptr, false);
  }
  std::vector<std::string> questions_;
  std::string arguments_;
};

TEST_F(Contamination, CleanQuestionsAreScoredApart) {
  const json both = evaluate("--contamination curated/curation.json --output out");
  const json clean = both["contamination"]["results"]["t"];
  EXPECT_EQ(both["results"]["t"]["sample_len"], 5);
  EXPECT_EQ(clean["sample_len"], 3);
  EXPECT_EQ(clean["found"], 2);
  EXPECT_EQ(clean["out_of_reach"], 0);
  // The same numbers as an evaluation of only these questions, and none of the others changes.
  EXPECT_EQ(both["results"]["t"], evaluate("")["results"]["t"]);
  EXPECT_FALSE(evaluate("").contains("contamination"));
  write_questions({0, 2, 4});
  const json alone = evaluate("")["results"]["t"];
  for (const char* key : {"acc,none", "acc_stderr,none", "acc_norm,none"})
    EXPECT_EQ(clean[key], alone[key]) << key;
  std::vector<bool> marks;
  for (const auto& entry : fs::recursive_directory_iterator(directory_ / "out"))
    if (entry.path().filename().string().starts_with("samples_")) {
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);)
        marks.push_back(json::parse(line)["contaminated"]);
    }
  EXPECT_THAT(marks, testing::ElementsAre(false, true, false, true, false));
}

TEST_F(Contamination, QuestionsAreKnownByTheirTexts) {
  write_questions({3, 0, 1, 4, 2});
  const json moved = evaluate("--contamination curated/curation.json --limit 2");
  EXPECT_EQ(moved["contamination"]["results"]["t"]["sample_len"], 1);  // the second one is clean
  write_questions({3, 1, 0, 4, 2}, "num_fewshot: 1\ndescription: 'Answer. '\n");
  const Outcome table =
      run_kintsugi("eval " + arguments_ + "--contamination curated/curation.json --limit 2");
  EXPECT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.out, AllOf(HasSubstr("|Clean questions|"), HasSubstr("| 0/2|")));
}

TEST_F(Contamination, ReportsOfOtherQuestionsAreRefused) {
  const auto refused = [&] {
    return mistake(arguments_ + "--contamination curated/curation.json");
  };
  write_questions({0, 1, 2, 3});
  EXPECT_THAT(refused(), HasSubstr("looked for other questions of t than its files have now"));
  write_questions({0, 1, 2, 3, 4}, "target_delimiter: ': '\n");
  EXPECT_THAT(refused(), HasSubstr("looked for other questions of t"));
  write_questions({0, 1, 2, 3, 4});
  arguments_ += "--tasks " + examples() + "/agreement.yaml ";
  EXPECT_THAT(refused(),
              HasSubstr("did not look for the questions of agreement, but for those of t"));
  write_questions({0, 1, 2, 3, 4});
  EXPECT_THAT(mistake(arguments_ + "--contamination no.json"), HasSubstr("no.json does not exist"));
  directory_.write("none.yaml", "steps:\n  - repair:\n");
  ASSERT_EQ(run_kintsugi("data curate none.yaml --input corpus.jsonl --output none").code, 0);
  EXPECT_THAT(mistake(arguments_ + "--contamination none/curation.json"),
              HasSubstr("did not look for questions of tasks"));
  std::string damaged = content_of("curated/curation.json");
  directory_.write("damaged.json", damaged.substr(0, damaged.size() / 2));
  EXPECT_THAT(mistake(arguments_ + "--contamination damaged.json"),
              HasSubstr("is not a file of a curation"));
}

TEST_F(EvalTasks, RanksShareTheWork) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
  const std::string arguments = "eval " + checkpoint() + "--tasks " + examples() +
                                " --limit 2 --json --threads 1 --bootstrap 0";
  const json alone = json::parse(run_kintsugi(arguments).out)["results"];
  const Outcome shared =
      run_in_shell(std::string(kOpenMpi) + "timeout 60 mpirun -n 3 \"$kintsugi\" " + arguments);
  ASSERT_EQ(shared.code, 0) << shared.error;
  EXPECT_EQ(json::parse(shared.out)["results"], alone);
}

TEST_F(EvalTasks, ReadsStandardInputAndCompressedFiles) {
  directory_.write("t.yaml",
                   "task: t\noutput_type: loglikelihood\ndataset_path: json\ntest_split: test\n"
                   "dataset_kwargs: {data_files: {test: '-'}}\ndoc_to_text: q\ndoc_to_target: a\n");
  const std::string line = R"({"q": "one", "a": " two"})";
  const Outcome outcome = run_kintsugi(
      "eval " + checkpoint() + "--tasks t.yaml --json --threads 1 --bootstrap 0", line);
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(json::parse(outcome.out)["n-samples"]["t"]["effective"], 1);
}

// The documents of a token store have the scores of their texts.
TEST_F(EvalTasks, ScoresATokenStore) {
  directory_.write("docs.jsonl", "{\"text\": \"A line of text\"}\n{\"text\": \"and 2 more\"}\n");
  directory_.write("t.yaml",
                   "task: t\noutput_type: loglikelihood_rolling\ndataset_path: json\n"
                   "test_split: test\ndataset_kwargs: {data_files: {test: docs.jsonl}}\n"
                   "doc_to_text: ''\ndoc_to_target: text\n"
                   "metric_list: [{metric: bits_per_byte}, {metric: byte_perplexity}]\n");
  const Outcome tokenized =
      run_kintsugi("data tokenize --input docs.jsonl --output store --tokenizer bytes --no-eod");
  ASSERT_EQ(tokenized.code, 0) << tokenized.error;
  const json text = results("--tasks t.yaml")["t"];
  const json all = results("--store store");
  ASSERT_EQ(all.size(), 1u) << all;
  EXPECT_NEAR(all.begin().value()["bits_per_byte,none"], text["bits_per_byte,none"], 1e-9);
}

TEST_F(EvalTasks, Translates) {
  directory_.write("src", "good morning\nthank you\nyes\n");
  directory_.write("ref", "huomenta\nkiitos\njoo\n");
  const std::string common =
      "eval translate " + checkpoint() + "--sources src --references ref --threads 1 ";
  const Outcome outcome =
      run_kintsugi(common + "--examples src ref --shots 2 --max-tokens 4 --output hyp --json");
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(json::parse(outcome.out)["segments"], 3);
  const std::string written = content_of("hyp");
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 3) << written;
  EXPECT_THAT(
      mistake("translate " + checkpoint() + "--sources src --references ref --examples src ref"),
      AllOf(HasSubstr("src has 3 lines"), HasSubstr("--shots")));
}

// As in lm-evaluation-harness such documents count as wrong, with a warning; a task without any
// right label is a mistake in its file.
TEST_F(EvalTasks, LabelsOutsideTheChoicesAreReported) {
  const std::string good = R"({"q": "a", "c": ["x", "y"], "g": 0})"
                           "\n",
                    outside = R"({"q": "b", "c": ["x", "y"], "g": 2})"
                              "\n";
  const Outcome some = run_kintsugi("eval " + write_task(good + outside));
  EXPECT_EQ(some.code, 0) << some.error;
  EXPECT_THAT(some.error, AllOf(HasSubstr("1 of 2 documents"), HasSubstr("d.jsonl line 2"),
                                HasSubstr("its label is 2")));
  EXPECT_THAT(mistake(write_task(outside + outside)),
              AllOf(HasSubstr("t: no document has a label that is one of its choices"),
                    HasSubstr("d.jsonl line 1"), HasSubstr("doc_to_target")));
  EXPECT_THAT(mistake(write_task(R"({"q": "b", "c": ["x", "y"], "g": "Y"})")),
              HasSubstr("its label is \"Y\""));
}

TEST_F(EvalTasks, ACompressedFileThatFillsTheMemoryIsRefused) {
  const std::string member = gzip(std::string(std::size_t{64} << 20, ' '));
  std::string bomb;
  for (int i = 0; i < 17; ++i) bomb += member;  // 1.1 GB
  EXPECT_THAT(mistake(write_task(bomb)),
              AllOf(HasSubstr("d.jsonl has more than 1 GiB"), HasSubstr("unpack it")));
}

TEST_F(EvalTasks, PythonFunctionsAreNamedWithWhatToDo) {
  const std::string good = R"({"q": "a", "c": ["x", "y"], "g": 0})"
                           "\n";
  EXPECT_THAT(mistake(write_task(good, "process_docs: !function utils.process_docs\n")),
              AllOf(HasSubstr("t.yaml: process_docs"), HasSubstr("utils.process_docs"),
                    HasSubstr("needs Python: preprocess the data set")));
  EXPECT_THAT(mistake(write_task(good, "metric_list: [{metric: !function utils.f}]\n")),
              AllOf(HasSubstr("metric is"), HasSubstr("needs Python")));
}

// Values of the wrong kind are reported in our words, not in those of the YAML library.
TEST_F(EvalTasks, EmptyMapsAreReportedWithTheirKeys) {
  const std::string task = write_task("{}\n");
  std::string yaml = content_of("t.yaml");
  const std::string files = "dataset_kwargs: {data_files: {test: d.jsonl}}";
  yaml.replace(yaml.find(files), files.size(), "dataset_kwargs: {}");
  directory_.write("t.yaml", yaml);
  EXPECT_THAT(mistake(task), AllOf(HasSubstr("dataset_kwargs.data_files has no split 'test'"),
                                   testing::Not(HasSubstr("invalid node"))));
}

// The directory that --output names has a directory of each model.
TEST_F(EvalTasks, AggregateReadsWhatEvalWrites) {
  write_task(R"({"q": "a", "c": ["x", "y"], "g": 0})");
  std::string tasks;
  for (const auto& [name, metric] :
       std::map<std::string, std::string>{{"arc_challenge", "acc_norm"}, {"winogrande", "acc"}}) {
    std::string yaml = content_of("t.yaml");
    yaml.replace(yaml.find("task: t"), 7, "task: " + name);
    directory_.write(name + ".yaml", yaml);
    tasks += (tasks.empty() ? "" : ",") + name + ".yaml";
  }
  const std::string eval = "eval " + checkpoint() + "--threads 1 --output results --tasks " + tasks;
  ASSERT_EQ(run_kintsugi(eval).code, 0);
  const std::string aggregate = "aggregate --rule poro --only english results";
  // The two tasks are found, from 0 examples.
  EXPECT_THAT(mistake(aggregate), AllOf(HasSubstr("0-shot in results/"), HasSubstr("not 25-shot")));
  fs::create_directory(directory_ / "results/other");
  directory_.write("results/other/results.json", R"({"results": {"winogrande": {"acc": 1}}})");
  EXPECT_THAT(mistake(aggregate), AllOf(HasSubstr("several models"), HasSubstr("results/other")));
}

TEST_F(EvalTasks, MistakesAreFoundBeforeTheModelIsLoaded) {
  const std::string none = "--checkpoint nowhere ";
  EXPECT_THAT(mistake(none + "--tasks " + examples()), HasSubstr("nowhere"));
  EXPECT_THAT(mistake(checkpoint() + "--tasks capitols --include-path " + examples()),
              HasSubstr("did you mean 'capitals'"));
  EXPECT_THAT(mistake(checkpoint() + "--tasks " + examples() + " --output in.txt/x"),
              HasSubstr("in.txt/x"));
  EXPECT_THAT(mistake(checkpoint() + "--store nowhere"), HasSubstr("nowhere.idx"));
  EXPECT_THAT(mistake(checkpoint()), HasSubstr("--tasks"));
  EXPECT_THAT(mistake(checkpoint() + "--tasks a --tensor 2 --text x"), HasSubstr("--t"));
}

}  // namespace
}  // namespace kintsugi
