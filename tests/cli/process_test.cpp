// The program with closed or full outputs, limited file sizes and limited memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "support/program_test.h"
#include "support/sanitizers.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ProcessTest : public ProgramTest {
 protected:
  ProcessTest() {
    directory_.write("corpus.txt", small_corpus(300));
    directory_.write("run.yaml",
                     small_config("corpus.txt", "run", "steps: 3, eval_every: 0, log_every: 1"));
  }
  // The error is one line.
  static void expect_one_error(const Outcome& outcome, int code) {
    EXPECT_EQ(outcome.code, code) << outcome.error;
    EXPECT_THAT(outcome.error, StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
  }
  std::vector<json> metrics() {
    std::vector<json> lines;
    std::istringstream text(content_of("run/metrics.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
  json status() { return json::parse(content_of("run/status.json")); }
};

TEST_F(ProcessTest, SurvivesAClosedOrFullStandardError) {
  for (const char* where : {"2>/dev/full", "2>&-", ">&- 2>&-"})
    EXPECT_EQ(run_in_shell("\"$kintsugi\" train nofile.yaml " + std::string(where)).code, 2)
        << where;
}

TEST_F(ProcessTest, AFullStandardOutputIsAFailureEverywhere) {
  for (const char* command :
       {"--help", "--version", "train --help", "model --list", "model llama-tiny --json",
        "plan machines", "plan schedule 1f1b --stages 2 --micro-batches 4",
        "data encode --tokenizer bytes"}) {
    const Outcome outcome =
        run_in_shell("echo '\"a\"' | \"$kintsugi\" " + std::string(command) + " >/dev/full");
    expect_one_error(outcome, 1);
    EXPECT_THAT(outcome.error, HasSubstr("cannot write standard output: No space left")) << command;
  }
  const std::string model = " --checkpoint '" + test_data_directory() + "/llama' --token-ids '1 5'";
  for (const std::string command : {"eval", "generate --max-tokens 3"})
    expect_one_error(run_in_shell("\"$kintsugi\" " + command + model + " >/dev/full"), 1);
}

TEST_F(ProcessTest, ARunGoesOnBehindAFullStandardOutput) {
  expect_one_error(run_in_shell("\"$kintsugi\" train run.yaml >/dev/full"), 1);
  EXPECT_EQ(status()["state"], "finished");
  EXPECT_EQ(metrics().size(), 3u);
  EXPECT_TRUE(fs::exists(directory_ / "run/checkpoints/step-00000003"));
}

// A pipe without a reader as descriptor 9 of the processes started during its lifetime.
class BrokenPipe {
 public:
  BrokenPipe() {
    std::array<int, 2> ends;
    EXPECT_EQ(::pipe(ends.data()), 0);
    ::dup2(ends[1], 9);
    for (const int end : ends)
      if (end != 9) ::close(end);
  }
  ~BrokenPipe() { ::close(9); }
};

TEST_F(ProcessTest, EndsQuietlyWhenNobodyReads) {
  const BrokenPipe pipe;
  const Outcome list = run_in_shell("\"$kintsugi\" model --list >&9");
  EXPECT_EQ(list.code, 128 + SIGPIPE);
  EXPECT_EQ(list.error, "");
  const Outcome run = run_in_shell("\"$kintsugi\" train run.yaml >&9");
  EXPECT_EQ(run.code, 0) << "its result is in the run directory";
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(status()["state"], "finished");
}

TEST_F(ProcessTest, ClosedDescriptorsPutNoMessageIntoAFile) {
  EXPECT_EQ(run_in_shell("\"$kintsugi\" train run.yaml <&- >&- 2>&-").code, 0);
  for (const auto& entry : fs::recursive_directory_iterator(directory_ / "run")) {
    if (!entry.is_regular_file() || entry.path().filename() == "log.txt") continue;
    EXPECT_THAT(content_of(fs::relative(entry.path(), directory_.path()).string()),
                Not(HasSubstr("run directory: run")))
        << entry.path();
  }
  EXPECT_EQ(metrics().size(), 3u);
  // Also with an error about the first file that is opened.
  directory_.write("bad.yaml", "modle: {}\n");
  EXPECT_EQ(run_in_shell("\"$kintsugi\" train bad.yaml <&- >&- 2>&-").code, 2);
  EXPECT_EQ(content_of("bad.yaml"), "modle: {}\n");
}

// The limit, in blocks of 512 bytes, suffices for the start of a run but not for 20 metrics lines.
TEST_F(ProcessTest, AFileSizeLimitIsAFailureThatTheStatusNames) {
  KINTSUGI_SKIP_UNDER_THREAD_SANITIZER();
  const std::string train =
      "\"$kintsugi\" train run.yaml --set train.steps=20 --set train.log_every=99 --set "
      "train.save=false";
  const Outcome limited = run_in_shell("ulimit -f 8; " + train);
  EXPECT_EQ(limited.code, 1);
  EXPECT_THAT(limited.error,
              AllOf(HasSubstr("error: cannot write run/metrics.jsonl: File too large"),
                    Not(HasSubstr("LOG ERROR"))));
  EXPECT_EQ(status()["state"], "failed");
  EXPECT_THAT(status()["message"].get<std::string>(), HasSubstr("metrics.jsonl"));
  const std::size_t before = metrics().size();  // whole lines
  EXPECT_GT(before, 5u);
  EXPECT_LT(before, 20u);
  EXPECT_EQ(run_in_shell(train).code, 0);
  EXPECT_EQ(metrics().size(), before + 20);
  EXPECT_EQ(metrics().back()["seq"], before + 19);
}

TEST_F(ProcessTest, HalfALineOfMetricsDoesNotSurviveAResume) {
  ASSERT_EQ(run_in_shell("\"$kintsugi\" train run.yaml").code, 0);
  directory_.write("run/metrics.jsonl", content_of("run/metrics.jsonl") + "{\"step\": 4, \"lo");
  ASSERT_EQ(run_in_shell("\"$kintsugi\" train run.yaml --set train.steps=5").code, 0);
  const std::vector<json> lines = metrics();
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[3]["step"], 4);
  EXPECT_EQ(lines[3]["seq"], 3);
}

// ---- control characters

// A pseudo-terminal that records the program's output unchanged.
class Terminal {
 public:
  Terminal() {
    int ours = -1, theirs = -1;
    EXPECT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, nullptr), 0);
    termios settings{};
    ::tcgetattr(theirs, &settings);
    ::cfmakeraw(&settings);
    ::tcsetattr(theirs, TCSANOW, &settings);
    name_ = ::ttyname(theirs);
    theirs_ = theirs;  // kept open until text(), because the program may not have opened it yet
    for (const int end : {ours, theirs}) ::fcntl(end, F_SETFD, FD_CLOEXEC);
    reader_ = std::thread([this, ours] {
      std::array<char, 4096> some;
      for (ssize_t n = 0; (n = ::read(ours, some.data(), some.size())) > 0;)
        text_.append(some.data(), static_cast<std::size_t>(n));
      ::close(ours);
    });
  }
  ~Terminal() {
    if (reader_.joinable()) text();
  }
  const std::string& name() const { return name_; }  // "/dev/pts/3"
  // Everything that was written. Call it when no process has the terminal open any more.
  std::string text() {
    ::close(theirs_);
    reader_.join();
    return text_;
  }

 private:
  int theirs_ = -1;
  std::string name_, text_;
  std::thread reader_;
};

bool has_controls(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
  });
}

TEST_F(ProcessTest, OnlyATerminalThatCanOverwriteGetsALiveLine) {
  const auto train_on_terminal = [&](const std::string& environment) {
    Terminal terminal;
    fs::remove_all(directory_ / "run");
    EXPECT_EQ(run_in_shell(environment + " \"$kintsugi\" train run.yaml > " + terminal.name()).code,
              0);
    return terminal.text();
  };
  EXPECT_TRUE(has_controls(train_on_terminal("TERM=xterm")));
  for (const char* plain : {"TERM=dumb", "TERM=", "TERM=xterm OMPI_COMM_WORLD_SIZE=1"}) {
    const std::string text = train_on_terminal(plain);
    EXPECT_THAT(text, HasSubstr("step      3/3"));
    EXPECT_FALSE(has_controls(text)) << plain;
  }
}

TEST_F(ProcessTest, ControlCharactersOfNamesAreSpelledOut) {
  const Outcome outcome =
      run_in_shell("\"$kintsugi\" train \"$(printf 'a\\033[31m\\nb\\r.yaml')\"");
  expect_one_error(outcome, 2);
  EXPECT_THAT(outcome.error, HasSubstr("a\\x1b[31m\\nb\\x0d.yaml"));
}

TEST_F(ProcessTest, AModelCannotCommandATerminal) {
  // A prompt with every kind of character; the continuation does not matter.
  ASSERT_EQ(run_in_shell("\"$kintsugi\" train run.yaml").code, 0);
  const std::string generate =
      "\"$kintsugi\" generate --checkpoint run/checkpoints/latest --max-tokens 20 --seed 3 "
      "--prompt "
      "\"$(printf 'a\\033]0;x\\007 \\302\\233 \\303\\274')\"";
  const Outcome file = run_in_shell(generate);
  ASSERT_EQ(file.code, 0) << file.error;
  EXPECT_THAT(file.out, StartsWith("a\x1b]0;x\x07 \xC2\x9B ü")) << "a file gets the bytes";
  Terminal terminal;
  ASSERT_EQ(run_in_shell("TERM=xterm " + generate + " > " + terminal.name()).code, 0);
  const std::string text = terminal.text();
  EXPECT_THAT(text, StartsWith("a\\x1b]0;x\\x07 \\xc2\\x9b ü"));
  EXPECT_FALSE(has_controls(text));
}

// ---- address space limits. Skipped with sanitizers, which need terabytes.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

class LimitedProcessTest : public ProcessTest {
 protected:
  // The limit is this much more than the loaded program and its libraries (gigabytes with CUDA).
  std::string limited_to(int more_kb) {
    if (least_kb_ == 0) find_least();
    return limit(least_kb_ + more_kb);
  }

 private:
  // OpenBLAS starts as on two cores: each of its threads needs a stack as soon as it is loaded.
  static std::string limit(int kb) {
    return "export OPENBLAS_NUM_THREADS=2; ulimit -v " + std::to_string(kb) + "; ";
  }
  void find_least() {
    const auto loads = [&](int limit_kb) {
      return run_in_shell(limit(limit_kb) + "\"$kintsugi\" --version").code == 0;
    };
    int too_little = 0;
    for (least_kb_ = 40'000; !loads(least_kb_); least_kb_ *= 2) too_little = least_kb_;
    while (least_kb_ - too_little > 20'000) {
      const int middle = too_little + (least_kb_ - too_little) / 2;
      (loads(middle) ? least_kb_ : too_little) = middle;
    }
  }
  int least_kb_ = 0;
};

// 40 MB are too little for one OpenBLAS buffer, 240 MB for two.
TEST_F(LimitedProcessTest, TooLittleAddressSpaceForBlasIsReportedAtOnce) {
  for (const int more_kb : {40'000, 240'000}) {
    const std::string limit = limited_to(more_kb);
    const Outcome train =
        run_in_shell(limit + "\"$kintsugi\" train run.yaml --set threads=4 --set device=cpu");
    expect_one_error(train, 2);
    EXPECT_FALSE(fs::exists(directory_ / "run"));
    const Outcome list = run_in_shell(limit + "\"$kintsugi\" model --list");
    EXPECT_EQ(list.code, 0) << "a command without BLAS ends, too";
    EXPECT_THAT(list.out, HasSubstr("llama-8b"));
  }
  // Where threads need more address space, it lacks for them first.
  std::string error;
  for (int more_kb = 240'000; more_kb < 1'000'000 && error.find("OpenBLAS") == std::string::npos;
       more_kb += 60'000) {
    const Outcome train = run_in_shell(
        limited_to(more_kb) + "\"$kintsugi\" train run.yaml --set threads=4 --set device=cpu");
    expect_one_error(train, 2);
    error = train.error;
  }
  EXPECT_THAT(error,
              AllOf(HasSubstr("OpenBLAS needs 128 MiB of address space for each of 4 threads"),
                    HasSubstr("ulimit -v")));
}

// Enough for BLAS, too little for the tensors.
TEST_F(LimitedProcessTest, ARunIsPlannedWithinTheAddressSpace) {
  const Outcome outcome = run_in_shell(
      limited_to(1'450'000) +
      "OPENBLAS_NUM_THREADS=1 \"$kintsugi\" train run.yaml --set threads=2 --set device=cpu "
      "--set model.hidden_size=4096 --set model.ffn_size=16384");
  expect_one_error(outcome, 2);
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("this run needs"), HasSubstr("is free")));
  EXPECT_FALSE(fs::exists(directory_ / "run"));
}

#endif

TEST_F(ProcessTest, GenerationIsPlannedBeforeAnythingIsLoaded) {
  fs::create_directories(directory_ / "large");
  json config = json::parse(std::ifstream(test_data_directory() + "/llama/config.json"));
  config["num_hidden_layers"] = 200;  // there are no weights: loading them first would fail
  config["hidden_size"] = 65536;
  config["intermediate_size"] = 262144;
  config["num_attention_heads"] = 512;
  config["num_key_value_heads"] = 512;
  config["head_dim"] = 128;
  directory_.write("large/config.json", config.dump());
  for (const std::string command : {"generate --max-tokens 1000", "eval"}) {
    const Outcome outcome =
        run_in_shell("\"$kintsugi\" " + command + " --checkpoint large --token-ids '1 5'");
    expect_one_error(outcome, 2);
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("for the weights"), HasSubstr("is free")));
  }
}

}  // namespace
}  // namespace kintsugi
