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
