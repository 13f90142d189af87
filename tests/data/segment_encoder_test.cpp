#include <gtest/gtest.h>

#include "core/file.h"
#include "data/corpora/tokenize_pipeline.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using Ids = std::vector<std::int32_t>;

const std::string kText =
    "The first line has words.\nA second one (too)\nthird, with  two spaces\nAnd the last one.\n";

// Encodes the text in segments, each of which begins after a line break.
Ids in_segments(Tokenizer& tokenizer, std::string_view text) {
  SegmentEncoder encoder(tokenizer);
  Ids ids;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    encoder.encode({.text = text.substr(begin, end - begin),
                    .starts_document = begin == 0,
                    .ends_document = end == text.size(),
                    .after_break = begin > 0},
                   ids);
    begin = end;
  }
  return ids;
}

void expect_the_whole(const std::string& name) {
  const auto tokenizer = load_tokenizer(name);
  Ids whole;
  tokenizer->encode(kText, whole);
  EXPECT_EQ(in_segments(*tokenizer, kText), whole) << name;
}

TEST(SegmentEncoder, SegmentsHaveTheTokensOfTheWholeText) {
  expect_the_whole("bytes");
  for (const char* name : {"gpt2", "gpt2_prefix", "llama2", "llama3", "metaspace", "neox", "qwen",
                           "sentencepiece_bpe", "sentencepiece_unigram"})
    expect_the_whole(test_data_directory() + "/tokenizers/" + name);
}

// A field that is repeated at the end of a protocol buffer replaces the earlier value: field 3 of
// the model is its normalizer, whose fields 3 and 4 are add_dummy_prefix and
// remove_extra_whitespaces.
TEST(SegmentEncoder, SentencePieceInEveryVariant) {
  TemporaryDirectory directory;
  for (const char* kind : {"sentencepiece_bpe", "sentencepiece_unigram"})
    for (const char prefix : {0, 1})
      for (const char remove : {0, 1}) {
        std::string model =
            read_text_file(test_data_directory() + "/tokenizers/" + kind + "/tokenizer.model");
        model += {0x1A, 4, 0x18, prefix, 0x20, remove};
        SCOPED_TRACE(testing::Message()
                     << kind << " prefix " << int{prefix} << " remove " << int{remove});
        expect_the_whole(directory.write("tokenizer.model", model));
      }
}

}  // namespace
}  // namespace kintsugi
