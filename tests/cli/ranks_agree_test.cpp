// `mpirun -np 1 kintsugi train … : -np 1 kintsugi train …`: ranks that were started differently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <vector>

#include "support/large_tensors.h"
#include "support/mpirun.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class RanksAgree : public testing::Test {
 protected:
  struct Part {
    int ranks = 1;
    std::string arguments = "";  // of train, after the configuration
    std::string folder = "a";    // working directory; each has files with the same names
    std::string program = kintsugi_binary();
  };

  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
    for (const char* folder : {"a", "b"}) {
      fs::create_directory(directory_ / folder);
      std::ofstream(directory_ / folder / "run.yaml")
          << small_config("corpus.txt", (directory_ / "run").string(),
                          "steps: 2, eval_every: 0, checkpoint_every: 0");
      std::ofstream(directory_ / folder / "corpus.txt") << small_corpus(200);
    }
  }

  // The exit code of the job.
  int train(const std::vector<Part>& parts) {
    return run_on_ranks(parts, "train run.yaml --set batch.micro=1 --set device=cpu");
  }
  int run_on_ranks(const std::vector<Part>& parts, const std::string& arguments) {
    std::string command = kOpenMpi + std::string("timeout 60 mpirun");
    for (std::size_t i = 0; i < parts.size(); ++i)
      command += fmt::format("{} -np {} -wdir '{}' '{}' {} {}", i == 0 ? "" : " :", parts[i].ranks,
                             (directory_ / parts[i].folder).string(), parts[i].program, arguments,
                             parts[i].arguments);
    command += fmt::format(" > '{0}/out' 2> '{0}/err' < /dev/null", directory_.path().string());
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // Expects one error line that matches, before anything is written.
  template <class Matcher>
  void expect_refused(const std::vector<Part>& parts, const Matcher& words) {
    EXPECT_EQ(train(parts), 2);
    const std::string errors = content_of(directory_ / "err");
    EXPECT_THAT(errors, words);
    const std::string sentence = "error: the ranks were started differently";
    EXPECT_NE(errors.find(sentence), std::string::npos) << errors;
    EXPECT_EQ(errors.find(sentence), errors.rfind(sentence)) << errors;
    EXPECT_FALSE(fs::exists(directory_ / "run"));
  }

  TemporaryDirectory directory_;
};

TEST_F(RanksAgree, OnTheConfiguration) {
  expect_refused(
      {{.ranks = 2},
       {.arguments = "--set run.seed=2 --set optimizer.lr=0.01"},
       {.arguments = "--set train.precision=bf16 --set data.sequence_length=12"}},
      AllOf(HasSubstr("on rank 2 optimizer.lr is 0.01 instead of 0.004, run.seed is 2 instead of 3 "
                      "(as on rank 0 and 1 more)"),
            HasSubstr("on rank 3 data.sequence_length is 12 instead of 24, train.precision is bf16 "
                      "instead of fp32")));
}

// Different layouts would deadlock.
TEST_F(RanksAgree, OnTheLayout) {
  expect_refused({{.arguments = "--set layout.tp=2"}, {.arguments = "--set layout.pp=2"}},
                 HasSubstr("on rank 1 layout.pp is 2 instead of 1, layout.tp is 1 instead of 2"));
}

TEST_F(RanksAgree, OnTheOptions) {
  expect_refused({{.ranks = 2}, {.arguments = "--check --resume never --profile steps=2"}},
                 AllOf(HasSubstr("on rank 2 --check is true instead of false"),
                       HasSubstr("--resume is never instead of auto"),
                       HasSubstr("--profile is given steps=2 instead of not given")));
}

TEST_F(RanksAgree, OnWhatTheDataHolds) {
  std::ofstream(directory_ / "b" / "corpus.txt") << small_corpus(201);
  expect_refused({{}, {.folder = "b"}},
                 HasSubstr("on rank 1 the fingerprint of the held-out data is "));
}

// The folders have a model of the same name, which differs in its large tensors only.
class RanksAgreeOnWeights : public RanksAgree {
 protected:
  void SetUp() override {
    RanksAgree::SetUp();
    if (IsSkipped()) return;
    const std::string corpus = (directory_ / "a/corpus.txt").string();
    std::string config =
        small_config(corpus, (directory_ / "base").string(), "steps: 2, eval_every: 0");
    config.replace(config.find("ffn_size: 48"), 12, "ffn_size: 600");
    run_training(config);
    for (const char* folder : {"a", "b"}) {
      fs::copy(directory_ / "base/checkpoints/latest/", directory_ / folder / "model");
      fs::remove(directory_ / folder / "model/checksums.json");
      std::ofstream(directory_ / folder / "texts.txt") << "the river\nkeeps a lantern\n";
    }
    negate_large_tensors(directory_ / "b/model/model.safetensors");
  }
  // Expects one error line, with the rank and what differs there.
  void expect_difference(const std::vector<Part>& parts, const std::string& arguments,
                         const std::string& what) {
    EXPECT_EQ(run_on_ranks(parts, arguments), 2) << arguments;
    const std::string errors = content_of(directory_ / "err");
    EXPECT_THAT(errors, HasSubstr("on rank 1 the fingerprint of " + what)) << arguments;
    const std::string sentence = "error: the ranks were started differently";
    EXPECT_NE(errors.find(sentence), std::string::npos) << errors;
    EXPECT_EQ(errors.find(sentence), errors.rfind(sentence)) << errors;
  }
};

TEST_F(RanksAgreeOnWeights, ThatARunStartsFrom) {
  for (const char* folder : {"a", "b"})
    std::ofstream(directory_ / folder / "run.yaml") << fmt::format(
        "run: {{dir: \"{}\", seed: 3}}\nmodel: {{init: model}}\n"
        "data: {{train: [{{path: corpus.txt}}], sequence_length: 24}}\n"
        "batch: {{global: 2, micro: 1}}\noptimizer: {{warmup_steps: 0}}\n"
        "train: {{steps: 1, eval_every: 0}}\n",
        (directory_ / "run").string());
  expect_refused({{}, {.folder = "b"}},
                 HasSubstr("on rank 1 the fingerprint of the weights in model.init is "));
  EXPECT_EQ(train({{}, {}}), 0) << content_of(directory_ / "err");
}

TEST_F(RanksAgreeOnWeights, ThatAreEvaluated) {
  const std::string eval = "eval --checkpoint model --store texts --threads 1",
                    embed = "embed --checkpoint model --input texts.txt --output e.jsonl";
  for (const char* folder : {"a", "b"})
    ASSERT_EQ(run_on_ranks({{.folder = folder}},
                           "data tokenize --input texts.txt --tokenizer bytes --output texts"),
              0)
        << content_of(directory_ / "err");
  expect_difference({{}, {.folder = "b"}}, eval, "the weights of the model is ");
  expect_difference({{}, {.folder = "b"}}, embed, "the weights of the model is ");
  expect_difference({{}, {.folder = "b"}}, "generate --checkpoint model --prompt the",
                    "the weights of the model is ");
  EXPECT_EQ(run_on_ranks({{}, {}}, eval), 0) << content_of(directory_ / "err");
}

// A copy of the program with another build id in its file.
TEST_F(RanksAgree, OnTheBuild) {
  std::string program = content_of(kintsugi_binary());
  const std::string note("\x14\0\0\0\x03\0\0\0GNU\0",
                         12);  // followed by the 20 bytes of the build id
  const std::size_t at = program.find(note);
  ASSERT_NE(at, std::string::npos);
  program[at + note.size()] = static_cast<char>(program[at + note.size()] ^ 1);
  const fs::path other = directory_ / "kintsugi";
  std::ofstream(other, std::ios::binary) << program;
  fs::permissions(other, fs::perms::owner_all);
  expect_refused({{}, {.program = other.string()}}, HasSubstr("on rank 1 the build is "));
}

// These keys do not change what is computed.
TEST_F(RanksAgree, ButMachinesMayDiffer) {
  EXPECT_EQ(train({{.arguments = "--set threads=1"},
                   {.arguments = "--set threads=2 --set cuda.matmul_cache=local.txt"}}),
            0)
      << content_of(directory_ / "err");
  EXPECT_TRUE(fs::exists(directory_ / "run" / "metrics.jsonl"));
}

}  // namespace
}  // namespace kintsugi
