// What make sanitize relies on: leaks of the program, searched once for each command, and the lists
// of tests that are left out.
#include "support/sanitizers.h"

#include <sys/resource.h>

#include <fstream>
#include <sstream>

#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

// A search for leaks at the end of a process takes seconds, and the tests start the program some
// thousand times: only the test below has it searched.
const bool kChildrenSearchNoLeaks = [] {
  const char* options = std::getenv("ASAN_OPTIONS");
  const std::string mine = (options != nullptr ? options + std::string(":") : "");
  return kAddressSanitizer && ::setenv("ASAN_OPTIONS", (mine + "detect_leaks=0").c_str(), 1) == 0;
}();

// Appends the processor time of each test, with that of the programs it started, to the file that
// KINTSUGI_TEST_TIMES names. Unlike the time of day it does not depend on what else runs.
class TestTimes : public testing::EmptyTestEventListener {
 public:
  explicit TestTimes(const char* path) : file_(path, std::ios::app) {}

 private:
  static double processor_time_s() {
    double sum = 0;
    for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage usage{};
      ::getrusage(who, &usage);
      for (const timeval& time : {usage.ru_utime, usage.ru_stime})
        sum += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    }
    return sum;
  }
  // Time between two ends: with what a suite prepares before its first test.
  void OnTestEnd(const testing::TestInfo& test) override {
    const double now_s = processor_time_s();
    file_ << fmt::format("{:.2f} {}.{}\n", now_s - before_s_, test.test_suite_name(), test.name())
          << std::flush;
    before_s_ = now_s;
  }

  std::ofstream file_;
  double before_s_ = processor_time_s();
};

[[maybe_unused]] const bool kWritesTimes = [] {
  const char* path = std::getenv("KINTSUGI_TEST_TIMES");
  if (path == nullptr) return false;
  testing::UnitTest::GetInstance()->listeners().Append(new TestTimes(path));  // which owns it
  return true;
}();

class LeaksOfCommands : public ProgramTest {
 protected:
  void expect_none(const std::string& command) {
    const Outcome outcome = run_in_shell("ASAN_OPTIONS=detect_leaks=1 \"$kintsugi\" " + command);
    EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.error;
  }
};

TEST_F(LeaksOfCommands, None) {
  if (!kAddressSanitizer) GTEST_SKIP() << "a test for make sanitize";
  EXPECT_TRUE(kChildrenSearchNoLeaks);
  directory_.write("corpus.txt", small_corpus(200));
  directory_.write("run.yaml", small_config("corpus.txt", "run", "steps: 4, log_every: 2"));
  expect_none("train run.yaml");
  for (const char* command :
       {"--version", "model llama-tiny",
        "data train-tokenizer --input corpus.txt --output tokenizer --vocab 300",
        "data tokenize --input corpus.txt --tokenizer tokenizer --output store",
        "data inspect store", "plan --model llama-8b --machine dgx-h100 --gpus 2",
        "generate --checkpoint run --prompt the --max-tokens 4",
        "eval --checkpoint run --text 'the river'", "watch run --once", "report run",
        "model convert run --output converted"})
    expect_none(command);
}

// The pattern of the test filter matches the whole name.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*')
    return !name.empty() && pattern[0] == name[0] && matches(pattern.substr(1), name.substr(1));
  for (std::size_t skip = 0; skip <= name.size(); ++skip)
    if (matches(pattern.substr(1), name.substr(skip))) return true;
  return false;
}

TEST(Sanitizers, EveryPatternMatchesATest) {
  std::vector<std::string> tests;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i)
    for (int j = 0; j < all.GetTestSuite(i)->total_test_count(); ++j)
      tests.push_back(std::string(all.GetTestSuite(i)->name()) + "." +
                      all.GetTestSuite(i)->GetTestInfo(j)->name());
  for (const char* sanitizer : {"address", "thread"}) {
    const std::string file = fmt::format("tests/sanitizers/{}.txt", sanitizer);
    std::istringstream lines(kintsugi::content_of(source_directory() + "/" + file));
    for (std::string line; std::getline(lines, line);) {
      const std::string pattern = line.substr(0, line.find_first_of(" #"));
      if (pattern.empty()) continue;
      EXPECT_NE(line.find(" # "), line.npos) << file << ": " << pattern << " says not why";
      EXPECT_TRUE(std::any_of(tests.begin(), tests.end(),
                              [&](const std::string& name) { return matches(pattern, name); }))
          << file << ": " << pattern;
    }
  }
}

}  // namespace
}  // namespace kintsugi
