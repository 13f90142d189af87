// The demonstration of fine-tuning: a small language model that is pre-trained on manual pages of
// four languages, as `make demo` does it, and then trained to tell the languages apart.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/program_test.h"
#include "support/sanitizers.h"

namespace kintsugi {
namespace {

using nlohmann::json;

class LanguageClassifierTest : public ProgramTest {
 protected:
  void succeeds(const std::string& arguments) {
    const Outcome outcome = run_kintsugi(arguments);
    ASSERT_EQ(outcome.code, 0) << arguments << "\n" << outcome.error;
  }
};

TEST_F(LanguageClassifierTest, SeparatesFourLanguagesOfManualPages) {
  if (kThreadSanitizer || kAddressSanitizer) GTEST_SKIP() << "it takes minutes under sanitizers";
  for (const char* language : {"fi", "nl", "pl"})
    if (!std::filesystem::exists(std::string("/usr/share/man/") + language + "/man1"))
      GTEST_SKIP() << "needs the manual pages of manpages-" << language;
  const Outcome pages = run_in_shell("'" + source_directory() + "/scripts/language_pages.sh' .");
  ASSERT_EQ(pages.code, 0) << pages.error;

  succeeds("data train-tokenizer --input pages.jsonl --vocab 1024 --output tokenizer");
  succeeds("data tokenize --input pages.jsonl --tokenizer tokenizer --output text");
  directory_.write("language_model.yaml", R"(
run: {dir: language_model}
model: {preset: llama-tiny, hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, ffn_size: 128}
data: {train: [{path: text}], tokenizer: tokenizer, sequence_length: 128}
batch: {global: 8, micro: 8}
optimizer: {kind: muon, lr: 1e-2, min_lr: 1e-3, warmup_steps: 10}
train: {steps: 100, eval_every: 0}
threads: 1
)");
  succeeds("train language_model.yaml");

  for (const std::string name : {"pages", "pages-held-out"})
    succeeds("data prepare-chat --input " + name + ".jsonl --tokenizer tokenizer --output " + name +
             " --labels en,fi,nl,pl");
  directory_.write("classifier.yaml", R"(
run: {dir: classifier}
model: {init: language_model}
objective: classification
data: {train: [{path: pages}], valid: [{path: pages-held-out}], tokenizer: tokenizer, sequence_length: 128}
batch: {global: 8, micro: 8}
optimizer: {kind: muon, lr: 5e-3, min_lr: 3e-4, warmup_steps: 5}
train: {steps: 100, eval_every: 100, eval_batches: 0}
threads: 1
)");
  succeeds("train classifier.yaml");
  const json scores = json::parse(content_of("classifier/classification.json"));
  EXPECT_GT(scores.at("accuracy").get<double>(), 0.95) << scores.dump(1);

  // The checkpoint alone gives the same predictions: accuracy is counted here from its output.
  succeeds(
      "classify --checkpoint classifier --input pages-held-out.jsonl --output labels.jsonl "
      "--threads 1");
  std::istringstream examples(content_of("pages-held-out.jsonl")),
      answers(content_of("labels.jsonl"));
  double right = 0, all = 0;
  for (std::string example, answer; std::getline(examples, example); ++all) {
    ASSERT_TRUE(std::getline(answers, answer)) << example;
    right += json::parse(example).at("label") == json::parse(answer).at("label");
  }
  EXPECT_GE(all, 150);
  EXPECT_GT(right / all, 0.95);
  EXPECT_NEAR(right / all, scores.at("accuracy").get<double>(), 1e-9);
}

}  // namespace
}  // namespace kintsugi
