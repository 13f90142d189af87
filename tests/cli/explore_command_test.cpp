// kintsugi data explore, as a user starts and ends it.
#include "http/listener.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ExploreCommand : public ProgramTest {
 protected:
  void SetUp() override {
    directory_.write("a.jsonl", "{\"text\": \"write to someone@example.com <b>\"}\n");
    directory_.write("recipe.yaml", "steps:\n  - personal_data:\n");
    ASSERT_EQ(run_kintsugi("data curate recipe.yaml --input a.jsonl --output out").code, 0);
  }
  std::string mistake(const std::string& arguments) {
    const Outcome outcome = run_kintsugi("data explore " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }
};

TEST_F(ExploreCommand, WritesAPageThatNeedsNoServer) {
  const Outcome outcome = run_kintsugi("data explore out --output page.html");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("page.html: "));
  const std::string page = content_of("page.html");
  EXPECT_THAT(page, AllOf(StartsWith("<!doctype html>"), HasSubstr("write to \\u003cemail-pii>"),
                          HasSubstr("Content-Security-Policy")));
  EXPECT_THAT(mistake("out --output page.html"), HasSubstr("--overwrite"));
  EXPECT_EQ(run_kintsugi("data explore out --output page.html --overwrite").code, 0);
}

TEST_F(ExploreCommand, ServesUntilASignal) {
  const Outcome outcome = run_in_shell(
      "unset KINTSUGI_DASHBOARD_TOKEN; touch log.txt\n"
      "\"$kintsugi\" data explore out --port 0 --token hidden > log.txt & pid=$!\n"
      "while kill -0 $pid && ! grep -q http log.txt; do sleep 0.02; done\n"
      "kill -INT $pid; wait $pid");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(content_of("log.txt"), AllOf(HasSubstr("1 directory: http://127.0.0.1:"),
                                           HasSubstr("?token=TOKEN"), Not(HasSubstr("hidden"))));
}

TEST_F(ExploreCommand, NamesItsMistakes) {
  const HttpListener taken("127.0.0.1", 0);
  EXPECT_THAT(mistake("out --port " + std::to_string(taken.port())), HasSubstr("is in use"));
  EXPECT_THAT(mistake("nosuch"), HasSubstr("nosuch is no directory"));
  EXPECT_THAT(mistake("."), HasSubstr("neither curation.json nor dedup.json"));
  EXPECT_THAT(mistake("out --output out/curation.json --overwrite"), HasSubstr("the input"));
  directory_.write("out/curation.json", "{\"kintsugi_curation\": 1}");
  EXPECT_THAT(mistake("out"), HasSubstr("out/curation.json was not written by"));
  EXPECT_THAT(mistake("out --output page.html"), HasSubstr("out/curation.json was not written by"));
  EXPECT_EQ(content_of("page.html"), "");
}

}  // namespace
}  // namespace kintsugi
