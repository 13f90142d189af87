// A typo in a size, such as some digits too many, is answered at once: it must not compute or
// allocate for long. The limit is of processor time, so that a busy machine does not matter.
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

class HugeSize : public ProgramTest {
 protected:
  void SetUp() override {
    directory_.write("text.txt", small_corpus(200));
    directory_.write("run.yaml",
                     small_config("text.txt", "r", "steps: 3", "device: cpu\nthreads: 1\n"));
  }
  void expect_quick(const std::string& arguments) {
    const Outcome outcome = run_in_shell("ulimit -t 5; exec \"$kintsugi\" " + arguments);
    EXPECT_TRUE(outcome.code == 0 || outcome.code == 2)
        << arguments << ": " << outcome.code << outcome.error;
  }
};

class HugeSizes : public HugeSize, public testing::WithParamInterface<const char*> {};

TEST_P(HugeSizes, AreAnsweredAtOnce) {
  for (const char* value : {"2147483647", "1073741824", "9223372036854775807"}) {
    const std::string set = std::string(" --set ") + GetParam() + "=" + value;
    expect_quick("train run.yaml --check" + set);
    expect_quick("train run.yaml --dry-run --machine dgx-h100" + set);
  }
}

INSTANTIATE_TEST_SUITE_P(Keys, HugeSizes,
                         testing::Values("model.vocab_size", "model.hidden_size", "model.layers",
                                         "model.heads", "model.kv_heads", "model.head_dim",
                                         "model.ffn_size", "model.max_positions",
                                         "data.sequence_length", "batch.global", "batch.micro",
                                         "batch.ramp.start", "train.steps", "train.eval_batches",
                                         "layout.tp", "layout.pp", "layout.cp", "layout.chunks",
                                         "threads"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// Batches that are refused only after every smaller one was looked at.
TEST_F(HugeSize, BatchesAreDividedAtOnce) {
  expect_quick(
      "train run.yaml --check --set batch.global=2147483646 --set batch.micro=2147483646 --set "
      "data.sequence_length=64");
}

TEST_F(HugeSize, TheRemedyIsNamed) {
  const Outcome outcome = run_in_shell(
      "ulimit -t 5; exec \"$kintsugi\" train run.yaml --check --set model.ffn_size=2147483647");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, testing::HasSubstr("use a smaller model"));
}

}  // namespace
}  // namespace kintsugi
