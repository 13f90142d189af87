// A text file is read in segments; its tokens are those of the same text in one line of JSONL.
#include <nlohmann/json.hpp>

#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

class TextFileTokens : public ProgramTest, public testing::WithParamInterface<const char*> {
 protected:
  std::string tokens(const std::string& input) {
    const Outcome outcome =
        run_kintsugi("data tokenize --input " + input + " --tokenizer '" + test_data_directory() +
                     "/tokenizers/" + GetParam() + "' --threads 1 --output store-" + input);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return content_of("store-" + input + ".bin");
  }
};

TEST_P(TextFileTokens, AreThoseOfTheSameTextInJsonl) {
  const std::string text = small_corpus(40'000);  // 1.2 MB: two segments
  ASSERT_GT(text.size(), std::size_t{1} << 20);
  directory_.write("a.txt", text);
  directory_.write("a.jsonl", nlohmann::json({{"text", text}}).dump() + "\n");
  const std::string of_text = tokens("a.txt");
  EXPECT_GT(of_text.size(), 100'000u);
  EXPECT_TRUE(of_text == tokens("a.jsonl"));
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, TextFileTokens,
                         testing::Values("gpt2_prefix", "llama2", "metaspace", "sentencepiece_bpe",
                                         "sentencepiece_unigram"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kintsugi
