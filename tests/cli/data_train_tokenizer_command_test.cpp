#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/file.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/tokenizer.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

struct TrainTokenizerResult {
  int code;
  std::string output;  // both streams
};

// Runs the program and returns its exit code and output.
TrainTokenizerResult kintsugi_train(const std::string& arguments) {
  const std::string command = kintsugi_binary() + " data train-tokenizer " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  TrainTokenizerResult outcome{-1, ""};
  std::array<char, 4096> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// Random words, punctuation, numbers and bytes that are invalid UTF-8.
std::string text(unsigned seed, int words) {
  std::mt19937 random(seed);
  const std::array<const char*, 12> syllables = {"ka", "in", "tsu",          "gi", "ro", "\xC3\xA9",
                                                 "n",  "st", "\xE9\x87\x91", "re", "o",  "ble"};
  std::string result;
  for (int i = 0; i < words; ++i) {
    for (unsigned k = 1 + random() % 4; k > 0; --k) result += syllables[random() % 12];
    if (random() % 9 == 0) result += "'ll " + std::to_string(random() % 5000);
    if (random() % 50 == 0) result += "\xFF";
    result += random() % 12 == 0 ? ".\nThe" : random() % 30 == 0 ? "  \t " : " ";
  }
  return result;
}

TEST(TrainTokenizer, WritesAFileOfTheKnownStructure) {
  const TemporaryDirectory directory;
  const std::string input = directory.write("a.txt", text(1, 5000));
  const TrainTokenizerResult outcome =
      kintsugi_train("--input " + input + " --vocab 600 --output " + (directory / "tok").string() +
                     " --special '<|endoftext|>' '<pad>' --eos '<pad>'");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("600 tokens"), HasSubstr("bytes per token")));

  const Json json = Json::parse(read_text_file(directory / "tok/tokenizer.json"));
  EXPECT_EQ(json["version"], "1.0");
  for (const char* key : {"truncation", "padding", "normalizer"})
    EXPECT_TRUE(json.at(key).is_null()) << key;
  EXPECT_EQ(json["pre_tokenizer"], Json::parse(R"({"type": "ByteLevel", "add_prefix_space": false,
                                                   "trim_offsets": true, "use_regex": true})"));
  EXPECT_EQ(json["decoder"]["type"], "ByteLevel");
  ASSERT_EQ(json["added_tokens"].size(), 2u);
  EXPECT_EQ(json["added_tokens"][1],
            Json::parse(R"({"id": 1, "content": "<pad>", "single_word": false, "lstrip": false,
                            "rstrip": false, "normalized": false, "special": true})"));
  const Json& model = json["model"];
  EXPECT_EQ(model["type"], "BPE");
  EXPECT_EQ(model["byte_fallback"], false);
  EXPECT_EQ(model["ignore_merges"], false);
  ASSERT_EQ(model["vocab"].size(), 600u);
  ASSERT_EQ(model["merges"].size(), 600u - 256u - 2u);
  std::set<int> ids;
  for (const auto& [token, id] : model["vocab"].items()) ids.insert(id.get<int>());
  EXPECT_EQ(ids.size(), 600u);
  EXPECT_EQ(*ids.rbegin(), 599);
  int next = 258;  // the n-th merge makes the n-th id after the bytes, from earlier tokens
  for (const std::string merge : model["merges"]) {
    const std::size_t space = merge.find(' ');
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    EXPECT_EQ(model["vocab"].at(left + right), next);
    EXPECT_LT(model["vocab"].at(left), next);
    EXPECT_LT(model["vocab"].at(right), next++);
  }
  const Json config = Json::parse(read_text_file(directory / "tok/tokenizer_config.json"));
  EXPECT_EQ(config["eos_token"], "<pad>");
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
}

TEST(TrainTokenizer, TheSameBytesForAnyNumberOfThreads) {
  const TemporaryDirectory directory;
  for (int i = 0; i < 5; ++i)
    directory.write(fmt::format("{}.txt", i), text(static_cast<unsigned>(i), 4000));
  const auto trained = [&](int threads) {
    const std::string output = (directory / fmt::format("tok{}", threads)).string();
    const TrainTokenizerResult outcome = kintsugi_train(fmt::format(
        "--input '{}/*.txt' --vocab 900 --pre-tokenizer llama3 --threads {} --output {}",
        directory.path().string(), threads, output));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return read_text_file(output + "/tokenizer.json");
  };
  const std::string one = trained(1);
  EXPECT_EQ(trained(2), one);
  EXPECT_EQ(trained(7), one);
}

// The simple, slow algorithm: applies each merge in turn to the whole pre-token.
std::vector<std::string> segmented(const std::string& pre_token, const Json& merges) {
  std::vector<std::string> tokens;
  for (const char c : pre_token) tokens.push_back(to_byte_alphabet(std::string(1, c)));
  for (const std::string merge : merges) {
    std::vector<std::string> joined;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool match = i + 1 < tokens.size() && tokens[i] + " " + tokens[i + 1] == merge;
      joined.push_back(match ? tokens[i] + tokens[i + 1] : tokens[i]);
      i += match;
    }
    tokens = joined;
  }
  return tokens;
}

class TrainedTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(TrainedTokenizer, EncodesItsWordsAsTheyWereMergedAndRoundTrips) {
  const TemporaryDirectory directory;
  const std::string corpus = text(3, 4000);
  const std::string input = directory.write("a.txt", corpus);
  const std::string output = (directory / "tok").string();
  const TrainTokenizerResult outcome = kintsugi_train(
      "--input " + input + " --vocab 700 --output " + output + " --pre-tokenizer " + GetParam());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const auto tokenizer = load_tokenizer(output);
  EXPECT_EQ(tokenizer->vocab_size(), 700);
  EXPECT_EQ(tokenizer->end_of_document(), 0);

  std::vector<std::int32_t> ids;
  tokenizer->encode(corpus, ids);
  std::string back;
  tokenizer->decode(ids, back);
  EXPECT_EQ(back, corpus);
  EXPECT_LT(ids.size() * 2, corpus.size());

  const Json model = Json::parse(read_text_file(directory / "tok/tokenizer.json"))["model"];
  std::set<std::string> pre_tokens;
  PreTokenizer::of_family(GetParam())
      .for_each_pre_token(corpus.substr(0, 2000),
                          [&](std::string_view pre_token) { pre_tokens.emplace(pre_token); });
  ASSERT_GT(pre_tokens.size(), 50u);
  for (const std::string& pre_token : pre_tokens) {
    std::vector<std::int32_t> found, expected;
    tokenizer->encode(pre_token, found);
    for (const std::string& token : segmented(pre_token, model["merges"]))
      expected.push_back(model["vocab"].at(token).get<std::int32_t>());
    EXPECT_EQ(found, expected) << pre_token;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TrainedTokenizer,
                         testing::Values("gpt2", "llama3", "qwen", "bloom"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TrainTokenizer, SaysWhatIsWrong) {
  const TemporaryDirectory directory;
  const std::string good = directory.write("a.txt", text(1, 100));
  const std::string empty = directory.write("empty.jsonl", "");
  const std::string file = directory.write("file", "x");
  const std::string tok = " --output " + (directory / "tok").string();
  const auto expect = [](const std::string& arguments, int code, const std::string& message) {
    const TrainTokenizerResult outcome = kintsugi_train(arguments);
    EXPECT_EQ(outcome.code, code) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(message)) << arguments;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  };
  expect("--input " + good + " --vocab 256" + tok, 2, "the 256 bytes and 1 special token need 257");
  expect("--input " + good + " --vocab many" + tok, 2, "'many' is not a whole number");
  expect("--input " + empty + " --vocab 300" + tok, 2, "there is no text in " + empty);
  expect("--input /nowhere.txt --vocab 300" + tok, 2, "/nowhere.txt");
  expect("--input '/nowhere/*.txt' --vocab 300" + tok, 2, "no file matches /nowhere/*.txt");
  expect("--input " + good + " --vocab 300 --output " + file, 2, "is a file");
  expect("--input " + good + " --vocab 300 --output " + file + "/tok", 1, "cannot create");
  expect("--input " + good + " --vocab 300 --eos '<eos>'" + tok, 2, "--special '<eos>'");
  expect("--input " + good + " --vocab 300 --pre-tokenizer gpt3" + tok, 2, "gpt3");
  expect("--input " + good + " --vocab 300 --special '\xFF\xFE<s>'" + tok, 2, "UTF-8");
  EXPECT_FALSE(std::filesystem::exists(directory / "tok")) << "nothing stays behind";

  ASSERT_EQ(kintsugi_train("--input " + good + " --vocab 300" + tok).code, 0);
  expect("--input " + good + " --vocab 310" + tok, 2, "tokenizer.json exists");
  EXPECT_EQ(kintsugi_train("--input " + good + " --vocab 310 --overwrite" + tok).code, 0);
}

TEST(TrainTokenizer, ADirectoryThatCannotBeWrittenIsNamed) {
  const TemporaryDirectory directory;
  const std::string good = directory.write("a.txt", text(1, 100));
  for (const char* output : {"/proc/tok", "/proc"}) {  // not even root may
    const TrainTokenizerResult outcome =
        kintsugi_train("--input " + good + " --vocab 300 --output " + output);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("error: cannot "), HasSubstr(output)));
  }
}

TEST(TrainTokenizer, SaysWhenTheCorpusHasNoMorePairs) {
  const TemporaryDirectory directory;
  const std::string input = directory.write("a.txt", "ab ab ab");
  const TrainTokenizerResult outcome =
      kintsugi_train("--input " + input + " --vocab 1000 --output " + (directory / "tok").string());
  EXPECT_EQ(outcome.code, 0);
  // "ab" and " ab": two merges.
  EXPECT_THAT(outcome.output, HasSubstr("warning: no pair is left that occurs 2 times: 259 tokens "
                                        "instead of 1000"));
}

}  // namespace
}  // namespace kintsugi
