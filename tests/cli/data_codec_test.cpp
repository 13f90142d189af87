// kintsugi data encode and decode, run as programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/paths.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class DataCodec : public ProgramTest {
 protected:
  Outcome run(const std::string& arguments, const std::string& input) {
    return run_kintsugi("data " + arguments, input);
  }
};

TEST_F(DataCodec, ALineInALineOut) {
  const Outcome encoded = run("encode --tokenizer bytes", "\"ab\"\n\"\"\n\"\\u00e9\\n\"\n\"last\"");
  EXPECT_EQ(encoded.code, 0) << encoded.error;
  EXPECT_EQ(encoded.out, "[97,98]\n[]\n[195,169,10]\n[108,97,115,116]\n");
  const Outcome decoded = run("decode --tokenizer bytes", encoded.out);
  EXPECT_EQ(decoded.out, "\"ab\"\n\"\"\n\"é\\n\"\n\"last\"\n");
  EXPECT_EQ(run("decode --tokenizer bytes", "[195]\n[226,130,65]\n").out,
            "\"\uFFFD\"\n\"\uFFFDA\"\n");
}

TEST_F(DataCodec, MalformedLinesAreNamed) {
  for (const char* bad : {"hello", "[1,2]", "\"open", "\"\\ud800\"", "", "\"a\" \"b\""}) {
    const Outcome outcome =
        run("encode --tokenizer bytes", "\"good\"\n" + std::string(bad) + "\n\"after\"\n");
    EXPECT_EQ(outcome.code, 2) << bad;
    EXPECT_EQ(outcome.out, "[103,111,111,100]\n") << bad;
    EXPECT_THAT(outcome.error, AllOf(StartsWith("error: "), HasSubstr("line 2"))) << bad;
  }
  for (const char* bad :
       {"7", "[1,\"a\"]", "[1.5]", "[-1]", "[256]", "[99999999999]", "{}", "[1,2"}) {
    const Outcome outcome = run("decode --tokenizer bytes", "[65]\n" + std::string(bad) + "\n");
    EXPECT_EQ(outcome.code, 2) << bad;
    EXPECT_THAT(outcome.error, AllOf(StartsWith("error: "), HasSubstr("line 2"))) << bad;
  }
  EXPECT_EQ(run("encode --tokenizer nowhere.json", "").code, 2);
}

TEST_F(DataCodec, ALineOfMegabytes) {
  const std::string text(3 << 20, 'x');
  const Outcome encoded = run("encode --tokenizer bytes", "\"" + text + "\"\n");
  EXPECT_EQ(encoded.out.size(), text.size() * 4 + 2);
  const Outcome decoded = run("decode --tokenizer bytes", encoded.out);
  EXPECT_EQ(decoded.out, "\"" + text + "\"\n");
}

TEST_F(DataCodec, SpecialTokens) {
  const json token = {{"id", 3}, {"content", "<s>"}, {"special", true}, {"normalized", false}};
  const json tokenizer = {
      {"added_tokens", {token}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"}, {"vocab", {{"<", 0}, {"s", 1}, {">", 2}}}, {"merges", json::array()}}}};
  directory_.write("tokenizer.json", tokenizer.dump());
  EXPECT_EQ(run("encode --tokenizer tokenizer.json", "\"<s>s\"\n").out, "[0,1,2,1]\n");
  EXPECT_EQ(run("encode --special --tokenizer .", "\"<s>s\"\n").out, "[3,1]\n");
  EXPECT_EQ(run("decode --tokenizer .", "[3,1]\n").out, "\"<s>s\"\n");
  EXPECT_EQ(run("decode --no-special --tokenizer .", "[3,1]\n").out, "\"s\"\n");
}

// Each line is answered before the next one is sent.
TEST_F(DataCodec, AnswersAtOnce) {
  std::ofstream(directory_ / "talk.sh")
      << "mkfifo q a\n'" << kintsugi_binary()
      << "' data encode --tokenizer bytes <q >a &\nexec 3>q 4<a\n"
         "echo '\"a\"' >&3; read -t 20 x <&4 || exit 9; echo $x\n"
         "echo '\"b\"' >&3; read -t 20 x <&4 || exit 9; echo $x\nexec 3>&-; wait\n";
  const int status =
      std::system(("cd '" + directory_.path().string() + "' && bash talk.sh >out.txt").c_str());
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content_of("out.txt"), "[97]\n[98]\n");
}

}  // namespace
}  // namespace kintsugi
