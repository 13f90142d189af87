// The rule for outputs, of every command that writes where the user says (docs/outputs.md): what
// exists is refused without --overwrite, and an input is never replaced.
#include <fmt/format.h>
#include <sys/stat.h>

#include "model/config.h"
#include "support/program_test.h"
#include "support/raw_model.h"
#include "support/served_model.h"
#include "support/small_run.h"
#include "support/synthetic_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A command that writes the file OUT, and an input that OUT must not replace.
struct FileCommand {
  const char* name;
  const char* arguments;  // OUT is replaced by the file
  const char* file;
  const char* input;  // of the command; "": it reads no file
};

const std::vector<FileCommand>& file_commands() {
  static const std::vector<FileCommand> all = {
      {"embed", "embed --threads 1 --checkpoint model --input in.jsonl --output OUT", "out.jsonl",
       "in.jsonl"},
      {"embed a store", "embed --threads 1 --checkpoint model --input store --output OUT",
       "out.jsonl", "store.bin"},
      {"embed from its model", "embed --threads 1 --checkpoint model --input in.jsonl --output OUT",
       "out.safetensors", "model/model.safetensors"},
      {"classify", "classify --threads 1 --checkpoint classifier --input store --output OUT",
       "out.jsonl", "store.idx"},
      {"eval translate",
       "eval translate --threads 1 --checkpoint model --sources src --references ref --examples "
       "dev.src dev.ref --shots 1 --max-tokens 1 --output OUT",
       "out", "dev.ref"},
      {"launch --csv", "launch --collect runs --csv OUT", "out.csv", "runs/a/metrics.jsonl"},
      {"launch --markdown", "launch --collect runs --markdown OUT", "out.md", "runs/a/status.json"},
      {"plan --svg", "plan schedule 1f1b --stages 2 --micro-batches 2 --svg OUT", "out.svg", ""},
      {"plan --scaling",
       "plan --model gpt2-124m --machine machine.yaml --gpus 1 --scaling strong --svg OUT",
       "out.svg", "machine.yaml"},
      {"plan --emit", "plan --model gpt2-124m --machine machine.yaml --gpus 1 --emit OUT",
       "out.yaml", "machine.yaml"},
      {"plan --replay", "plan --model gpt2-124m --machine machine.yaml --gpus 1 --replay OUT",
       "out.yaml", "machine.yaml"},
      {"calibrate",
       "calibrate --device cpu --threads 1 --models llama-tiny --effort 0.001 --machine "
       "machine.yaml "
       "--output OUT",
       "out.yaml", "machine.yaml"},
      {"data explore", "data explore curated --output OUT", "out.html", "curated/curation.json"},
      {"report html", "report runs/a --output OUT", "out.html", "runs/a/config.yaml"},
      {"report csv", "report runs/a --csv --output OUT", "table.txt", "runs/a/metrics.jsonl"},
      {"doctor", "doctor --seconds 0.1 --device cpu --threads 1 --machine machine.yaml --json OUT",
       "out.json", "machine.yaml"},
      {"train --profile", "train run.yaml --set run.dir=trained --profile steps=2,file=OUT",
       "out.json", "run.yaml"},
  };
  return all;
}

class Outputs : public ProgramTest, public testing::WithParamInterface<FileCommand> {
 protected:
  void SetUp() override {
    make_served_model(directory_ / "model");
    directory_.write("in.jsonl", "{\"text\": \"good morning\"}\n{\"text\": \"thank you\"}\n");
    directory_.write("text.txt", small_corpus(200));
    directory_.write("digits.txt", "1 2 3\n4 5\n");
    directory_.write("src", "yes\n");
    directory_.write("ref", "joo\n");
    directory_.write("dev.src", "no\n");
    directory_.write("dev.ref", "ei\n");
    directory_.write("memory.csv",
                     "dataset,num_layers,hidden_size,num_attention_heads,seq_length,tokenizer,"
                     "global_batch_size,bf16,fp8_format,gpus_total,mem_max_allocated_bytes\n"
                     "a,12,512,8,1024,gpt2-bpe,32,True,,8,1000000000\n");
    directory_.write("machine.yaml",
                     "name: bare\nnodes: 1\n"
                     "gpu: {bf16_tflops: 312, memory_gb: 80, memory_gb_s: 2039, tdp_w: 400}\n"
                     "node: {gpus: 8, link_gb_s: 300}\n");
    directory_.write("run.yaml",
                     small_config("text.txt", "r", "steps: 3", "device: cpu\nthreads: 1\n"));
    write_synthetic_run(directory_ / "runs/a", {});
    make_classifier();
    const Outcome store = run_kintsugi(
        "data tokenize --input digits.txt --output store --tokenizer model --no-eod --threads 1");
    ASSERT_EQ(store.code, 0) << store.error;
    directory_.write("recipe.yaml", "steps:\n  - repair:\n");
    const Outcome curated =
        run_kintsugi("data curate recipe.yaml --input digits.txt --output curated --threads 1");
    ASSERT_EQ(curated.code, 0) << curated.error;
  }
  // The same model with another head.
  void make_classifier() {
    fs::copy(directory_ / "model", directory_ / "classifier");
    ModelConfig config = read_hf_config(directory_ / "model/config.json");
    config.labels = {"low", "high"};
    config.complete_and_check();
    RawModel model = read_raw_model(directory_ / "classifier");
    model.erase("lm_head.weight");
    const auto elements = static_cast<std::size_t>(2 * config.hidden_size);
    model["score.weight"] = {"F32", {2, config.hidden_size}, std::vector<double>(elements, 0.5)};
    write_raw_model(directory_ / "classifier", model, false);
    directory_.write("classifier/config.json", write_hf_config(config, DType::F32));
  }
  // Runs the command with this output.
  Outcome run_with(const std::string& file, const std::string& options) {
    std::string arguments = GetParam().arguments;
    arguments.replace(arguments.find("OUT"), 3, file);
    fs::remove_all(directory_ / "trained");
    return run_kintsugi(arguments + options);
  }
  static void expect_mistake(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 2) << outcome.error;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(directory_.path()))
      all.push_back(entry.path().string());
    std::sort(all.begin(), all.end());
    return all;
  }
};

TEST_P(Outputs, AnExistingFileIsReplacedOnlyWithOverwrite) {
  const std::string file = GetParam().file;
  directory_.write(file, "years of work");
  const Outcome refused = run_with(file, "");
  expect_mistake(refused);
  EXPECT_THAT(refused.error, AllOf(HasSubstr(file), HasSubstr("--overwrite")));
  EXPECT_EQ(content_of(file), "years of work");
  const Outcome replaced = run_with(file, " --overwrite");
  EXPECT_EQ(replaced.code, 0) << replaced.error;
  EXPECT_NE(content_of(file), "years of work");
  EXPECT_NE(content_of(file), "");
}

// Under its own name and through a link; with the name of a temporary file beside it too.
TEST_P(Outputs, AnInputIsNeverReplaced) {
  const std::string file = GetParam().file, input = GetParam().input;
  if (input.empty()) GTEST_SKIP() << "it reads no file";
  const std::string before = content_of(input);
  fs::create_symlink(directory_ / input, directory_ / file);
  const Outcome linked = run_with(file, " --overwrite");
  expect_mistake(linked);
  EXPECT_THAT(linked.error, AllOf(HasSubstr("would replace the input"), Not(HasSubstr(".tmp"))));
  EXPECT_TRUE(fs::is_symlink(directory_ / file)) << "not even the link";
  EXPECT_EQ(content_of(input), before);
  fs::remove(directory_ / file);
  fs::create_hard_link(directory_ / input, directory_ / file);
  expect_mistake(run_with(file, " --overwrite"));
  EXPECT_EQ(content_of(input), before);
  if (fs::path(input).extension() == fs::path(file).extension()) {
    expect_mistake(run_with(input, " --overwrite"));
    EXPECT_EQ(content_of(input), before);
  }
}

// Nothing else beside an output is touched, and a pipe or a directory is refused.
TEST_P(Outputs, TemporaryFilesReplaceNothing) {
  const std::string file = GetParam().file;
  directory_.write(file + ".tmp", "years of work");
  directory_.write("out.txt", "");
  directory_.write("error.txt", "");
  fs::create_directories(directory_ / "folder" / file);
  ASSERT_EQ(::mkfifo((directory_ / ("pipe-" + file)).c_str(), 0600), 0);
  const auto before = names();
  expect_mistake(run_with("folder/" + file, " --overwrite"));
  expect_mistake(run_with("pipe-" + file, " --overwrite"));
  EXPECT_EQ(names(), before);
  EXPECT_TRUE(fs::is_fifo(directory_ / ("pipe-" + file)));
  const Outcome outcome = run_with("new-" + file, "");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(content_of(file + ".tmp"), "years of work");
}

INSTANTIATE_TEST_SUITE_P(Commands, Outputs, testing::ValuesIn(file_commands()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

class OutputDirectories : public ProgramTest {
 protected:
  void SetUp() override {
    make_random_model(directory_ / "a", "llama", 1, "F32", false);
    make_random_model(directory_ / "b", "llama", 2, "F32", false);
  }
  std::string mistake(const std::string& arguments) {
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
  void succeed(const std::string& arguments) {
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.error;
  }
};

// A tree with a config.json somewhere is not a model.
TEST_F(OutputDirectories, OnlyAModelIsReplacedByAModel) {
  const std::string importing =
      fmt::format("model import {0}/import/dcp-llama --model {0}/llama", test_data_directory());
  for (const std::string& command : std::vector<std::string>{"model convert a", "model merge a b",
                                                             "model upcycle a", importing}) {
    const std::string to = command + " --output project --overwrite";
    fs::create_directories(directory_ / "project/src");
    directory_.write("project/config.json", "{}");
    directory_.write("project/src/thesis.tex", "years of work");
    EXPECT_THAT(mistake(to), AllOf(HasSubstr("src/thesis.tex"), HasSubstr("--overwrite")));
    EXPECT_EQ(content_of("project/src/thesis.tex"), "years of work");
    fs::remove_all(directory_ / "project/src");
    directory_.write("project/notes.txt", "years of work");
    EXPECT_THAT(mistake(to), HasSubstr("notes.txt"));
    fs::remove(directory_ / "project/notes.txt");
    succeed(to);
    succeed(to);
    EXPECT_TRUE(fs::exists(directory_ / "project/model.safetensors"));
    fs::remove_all(directory_ / "project");
  }
}

TEST_F(OutputDirectories, TemporaryDirectoriesReplaceNothing) {
  fs::create_directory(directory_ / ".x.tmp");
  directory_.write(".x.tmp/thesis.tex", "years of work");
  EXPECT_THAT(mistake("model convert a --output x"), HasSubstr("thesis.tex"));
  EXPECT_EQ(content_of(".x.tmp/thesis.tex"), "years of work");
  fs::remove_all(directory_ / ".x.tmp");
  fs::rename(directory_ / "a", directory_ / ".x.tmp");
  EXPECT_THAT(mistake("model convert .x.tmp --output x"), HasSubstr("replace the input"));
  EXPECT_TRUE(fs::exists(directory_ / ".x.tmp/model.safetensors"));
}

TEST_F(OutputDirectories, ATokenizerReplacesNoOtherFiles) {
  directory_.write("text.txt", small_corpus(100));
  fs::create_directory(directory_ / "tok");
  directory_.write("tok/tokenizer_config.json", "years of work");
  const std::string train = "data train-tokenizer --vocab 280 --threads 1 --input ";
  EXPECT_THAT(mistake(train + "text.txt --output tok"),
              AllOf(HasSubstr("tokenizer_config.json exists"), HasSubstr("--overwrite")));
  EXPECT_EQ(content_of("tok/tokenizer_config.json"), "years of work");
  fs::create_symlink("../text.txt", directory_ / "tok/tokenizer.json");
  EXPECT_THAT(mistake(train + "text.txt --output tok --overwrite"), HasSubstr("the input"));
  fs::remove(directory_ / "tok/tokenizer.json");
  succeed(train + "text.txt --output tok --overwrite");
}

TEST_F(OutputDirectories, AStoreReplacesNoInputUnderAnotherName) {
  directory_.write("text.txt", small_corpus(50));
  const std::string tokenize = "data tokenize --tokenizer bytes --threads 1 --input text.txt ";
  succeed(tokenize + "--output one");
  succeed(tokenize + "--output two");
  const std::string before = content_of("one.bin");
  fs::create_directory_symlink(".", directory_ / "here");
  EXPECT_THAT(mistake("data merge here/one two --output one --overwrite"), HasSubstr("one"));
  fs::create_hard_link(directory_ / "text.txt", directory_ / "three.bin");
  EXPECT_THAT(mistake(tokenize + "--output three --overwrite"), HasSubstr("the input text.txt"));
  EXPECT_EQ(content_of("one.bin"), before);
  EXPECT_EQ(content_of("text.txt"), small_corpus(50));
}

TEST_F(OutputDirectories, ATableMayBeAmongItsRuns) {
  write_synthetic_run(directory_ / "runs/a", {});
  const std::string collect = "launch --collect runs --overwrite --csv runs/t --markdown runs/t.md";
  succeed(collect);
  succeed(collect);
}

TEST_F(OutputDirectories, TwoOutputsAreTwoFiles) {
  write_synthetic_run(directory_ / "runs/a", {});
  EXPECT_THAT(mistake("launch --collect runs --csv t --markdown ./t"), HasSubstr("the same file"));
  EXPECT_FALSE(fs::exists(directory_ / "t"));
}

// Also the configuration that the best layout is written to.
TEST_F(OutputDirectories, SecretsAreForTheirOwnerOnly) {
  const auto mode = [&](const std::string& name) {
    struct stat facts {};
    ::stat((directory_ / name).c_str(), &facts);
    return facts.st_mode & 0777;
  };
  ::umask(022);
  directory_.write("text.txt", small_corpus(100));
  directory_.write("run.yaml",
                   small_config("text.txt", "r", "steps: 2", "device: cpu\nthreads: 1\n"));
  const std::string secret = " --set run.notify.command='true # s3cret'";
  succeed("train run.yaml");
  EXPECT_EQ(mode("r/config.yaml"), 0644u);
  succeed("train run.yaml --set run.dir=s" + secret);
  EXPECT_EQ(mode("s/config.yaml"), 0600u);
  succeed("train run.yaml --set train.steps=3 --set run.dir=r" + secret);
  EXPECT_EQ(mode("r/config.yaml"), 0600u) << "it was readable before";
  succeed("launch run.yaml --local --set run.dir=l" + secret);
  EXPECT_EQ(mode("l/launch/config.yaml"), 0600u);
  const Outcome others = run_in_shell("grep -rl s3cret . | grep -v config.yaml");
  EXPECT_EQ(others.out, "");
  std::string yaml = content_of("run.yaml");
  yaml.replace(yaml.find("seed: 3"), 7, "seed: 3, notify: {webhook: 'https://host/s3cret'}");
  directory_.write("wrong.yaml", yaml);
  const Outcome wrong = run_kintsugi("train wrong.yaml --check");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.error, AllOf(HasSubstr("run.notify.webhook"), Not(HasSubstr("s3cret"))));
}

}  // namespace
}  // namespace kintsugi
