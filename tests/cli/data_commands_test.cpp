// kintsugi data tokenize, inspect, merge and verify as a user runs them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/file.h"
#include "support/compress.h"
#include "support/paths.h"
#include "support/sanitizers.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "support/token_files.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct DataCommandResult {
  int code;
  std::string out, error;
};

class DataCommandTest : public testing::Test {
 protected:
  // Starts `kintsugi data arguments` inside the temporary directory.
  pid_t start(const std::vector<std::string>& arguments) {
    const pid_t child = fork();
    if (child != 0) return child;
    if (chdir(directory_.path().c_str()) != 0) _exit(99);
    dup2(open("stdout.txt", O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
    dup2(open("stderr.txt", O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
    if (largest_file_ > 0) {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{largest_file_, largest_file_};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    std::string binary = kintsugi_binary(), command = "data";
    std::vector<std::string> copies = arguments;
    std::vector<char*> words = {binary.data(), command.data()};
    for (std::string& word : copies) words.push_back(word.data());
    words.push_back(nullptr);
    execv(binary.c_str(), words.data());
    _exit(99);
  }
  DataCommandResult finish(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content("stdout.txt"),
            content("stderr.txt")};
  }
  DataCommandResult run(const std::vector<std::string>& arguments) {
    return finish(start(arguments));
  }
  std::string mistake(const std::vector<std::string>& arguments) {
    const DataCommandResult outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.error;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.error, testing::StartsWith("error: "));
    return outcome.error;
  }
  std::string content(const std::string& name) { return read_text_file(directory_ / name); }
  // The files whose names start with `prefix`.
  std::map<std::string, std::string> files(const std::string& prefix) {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      if (const std::string name = entry.path().filename(); name.starts_with(prefix))
        found[name.substr(prefix.size())] = read_text_file(entry.path());
    return found;
  }
  // `count` files of sixty documents each, and one long document.
  void write_corpus(int count, int sentences) {
    for (int f = 0; f < count; ++f) {
      std::string lines;
      for (int i = 0; i < 60; ++i)
        lines += json({{"text", small_corpus(sentences + i) + std::to_string(f)}}).dump() + "\n";
      directory_.write("in" + std::to_string(f) + ".jsonl" + (f % 2 ? ".gz" : ""),
                       f % 2 ? gzip(lines) : lines);
    }
    directory_.write("in9.txt", small_corpus(80'000));
  }

  TemporaryDirectory directory_;
  rlim_t largest_file_ = 0;  // in bytes; simulates a full disk
};

// A job that is killed repeatedly at random times, and restarted with varying threads, writes the
// same bytes as an uninterrupted job.
TEST_F(DataCommandTest, KilledJobsLoseAndDoubleNothing) {
  write_corpus(4, 2000);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--shard-size", "900KiB"}}) {
    std::vector<std::string> command = {"tokenize", "--input",  "in*",  "--tokenizer",
                                        "bytes",    "--eod",    "0",    "--save-every",
                                        "0s",       "--output", "whole"};
    command.insert(command.end(), more.begin(), more.end());
    const std::string name = more.empty() ? "killed" : "killed-in-shards";
    ASSERT_EQ(run(command).code, 0) << content("stderr.txt");
    auto expected = files("whole");
    for (const auto& [file, bytes] : expected) fs::remove(directory_ / ("whole" + file));

    *std::find(command.begin(), command.end(), "whole") = name;
    command.insert(command.end(), {"--threads", ""});
    std::mt19937 random(6);
    int kills = 0;
    for (bool done = false; !done && kills < 25;) {
      command.back() = std::to_string(1 + random() % 3);
      const pid_t child = start(command);
      int status = 0;
      usleep(static_cast<useconds_t>(random() % 40'000));
      if (waitpid(child, &status, WNOHANG) == 0) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
      }
      if (WIFSIGNALED(status)) {
        ++kills;
        if (!fs::exists(directory_ / (name + ".progress.json"))) continue;
        EXPECT_THAT(mistake({"inspect", name}), HasSubstr("interrupted"));
        continue;
      }
      ASSERT_EQ(WEXITSTATUS(status), 0) << content("stderr.txt");
      done = true;
    }
    EXPECT_EQ(run(command).code, 0);  // in case it never finished between kills
    EXPECT_GT(kills, 0);
    auto found = files(name);
    found.erase(".json");  // lists the names of the shards
    expected.erase(".json");
    fs::remove(directory_ / (name + ".json"));
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [file, bytes] : expected) EXPECT_TRUE(found[file] == bytes) << file;
    for (const auto& [file, bytes] : found) fs::remove(directory_ / (name + file));
  }
}

TEST_F(DataCommandTest, StopsOnASignalAndContinues) {
  write_corpus(4, 2000);
  const std::vector<std::string> command = {
      "tokenize", "--input", "in*", "--tokenizer", "bytes", "--output", "o", "--save-every", "0s"};
  ASSERT_EQ(run(command).code, 0);
  const auto expected = files("o.");
  for (const auto& [file, bytes] : expected) fs::remove(directory_ / ("o." + file));
  const pid_t child = start(command);
  while (!fs::exists(directory_ / "o.progress.json")) usleep(200);
  kill(child, SIGTERM);
  const DataCommandResult stopped = finish(child);
  // A fast machine may have finished before the signal.
  const bool finished = fs::exists(directory_ / "o.idx");
  EXPECT_EQ(stopped.code, finished ? 0 : 75) << stopped.error;
  if (!finished) {
    EXPECT_THAT(stopped.out, AllOf(HasSubstr("SIGTERM"), HasSubstr("same command")));
    EXPECT_TRUE(fs::exists(directory_ / "o.progress.json"));
    EXPECT_THAT(run(command).out, HasSubstr("1.000 bytes/token"));
  }
  EXPECT_TRUE(files("o.") == expected);
  EXPECT_THAT(run(command).out, HasSubstr("nothing to do"));
}

// As tokenize, which the test above stops.
TEST_F(DataCommandTest, ACurationStopsOnASignalAndContinues) {
  write_corpus(2, 1000);
  directory_.write("r.yaml", "steps:\n  - repair:\n  - sample: {keep: 0.5}\n");
  const auto command = [](const std::string& output) {
    return std::vector<std::string>{"curate", "r.yaml",    "--input", "in*",          "--output",
                                    output,   "--threads", "1",       "--save-every", "0s"};
  };
  ASSERT_EQ(run(command("whole")).code, 0);
  const pid_t child = start(command("stopped"));
  while (!fs::exists(directory_ / "stopped/curation.progress.json") &&
         !fs::exists(directory_ / "stopped/curation.json"))
    usleep(200);
  kill(child, SIGTERM);
  const DataCommandResult stopped = finish(child);
  const bool finished = fs::exists(directory_ / "stopped/curation.json");
  EXPECT_EQ(stopped.code, finished ? 0 : 75) << stopped.error;
  if (!finished) {
    EXPECT_THAT(stopped.out, AllOf(HasSubstr("SIGTERM"), HasSubstr("same command")));
    EXPECT_EQ(run(command("stopped")).code, 0);
  }
  for (const char* file : {"/curation.json", "/documents-00000.jsonl.zst"})
    EXPECT_TRUE(content("stopped" + std::string(file)) == content("whole" + std::string(file)))
        << file;
}

TEST_F(DataCommandTest, TokenizeInspectVerifyMerge) {
  directory_.write("a.jsonl", "{\"text\":\"Hello\"}\n{\"text\":\"\"}\n{\"text\":\"worlds!\"}\n");
  const DataCommandResult outcome =
      run({"tokenize", "--input", "a.jsonl", "--tokenizer", "bytes", "--output", "sub/a"});
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("2 documents, 12 tokens"), HasSubstr("1 empty")));
  EXPECT_EQ(content("sub/a.bin"), "Helloworlds!");
  write_megatron((directory_ / "expected").string(), TokenType::U8,
                 {{'H', 'e', 'l', 'l', 'o'}, {'w', 'o', 'r', 'l', 'd', 's', '!'}});
  EXPECT_EQ(content("sub/a.idx"), content("expected.idx"));

  const DataCommandResult table = run({"inspect", "sub/a", "--tokenizer", "bytes"});
  EXPECT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.out, AllOf(HasSubstr("uint8"), HasSubstr("worlds!"), HasSubstr("4 - 7"),
                               HasSubstr("1.0000")));
  const json numbers = json::parse(run({"inspect", "sub/a", "--json"}).out);
  EXPECT_EQ(numbers["documents"], 2);
  EXPECT_EQ(numbers["shortest"], 5);
  EXPECT_EQ(numbers["longest"], 7);

  EXPECT_THAT(run({"verify", "sub/a"}).out, HasSubstr("check passed"));
  EXPECT_THAT(mistake({"verify", "sub/a", "--vocab", "110"}),
              AllOf(HasSubstr("document 0, token 4"), HasSubstr("id 111")));
  const DataCommandResult merged = run({"merge", "sub/a", "expected", "--output", "m"});
  EXPECT_EQ(merged.code, 0) << merged.error;
  EXPECT_EQ(content("m.bin"), "Helloworlds!Helloworlds!");
  EXPECT_THAT(run({"verify", "m"}).out, HasSubstr("no checksums"));
  directory_.write("sub/a.bin", "Helloworldz!");
  EXPECT_THAT(mistake({"verify", "sub/a"}), AllOf(HasSubstr("a.bin"), HasSubstr("checksum")));
}

TEST_F(DataCommandTest, Mistakes) {
  directory_.write("a.jsonl", "{\"text\":\"ok\"}\n{\"text\":\"\\ud800\"}\n");
  const auto tokenize = [](std::vector<std::string> more) {
    std::vector<std::string> all = {"tokenize", "--input", "a.jsonl", "--output", "o"};
    if (std::find(more.begin(), more.end(), "--tokenizer") == more.end())
      more.insert(more.end(), {"--tokenizer", "bytes"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_THAT(mistake(tokenize({})), AllOf(HasSubstr("a.jsonl, line 2"), HasSubstr("surrogate")));
  EXPECT_THAT(mistake(tokenize({"--eod", "<end>"})), HasSubstr("'<end>'"));
  EXPECT_THAT(mistake(tokenize({"--eod", "256"})), HasSubstr("'256'"));
  EXPECT_THAT(mistake(tokenize({"--tokenizer", "nosuch"})), HasSubstr("nosuch"));
  EXPECT_EQ(files("o").size(), 0u);
  const DataCommandResult skipped = run(tokenize({"--skip-invalid"}));
  EXPECT_EQ(skipped.code, 0);
  EXPECT_THAT(skipped.error, AllOf(HasSubstr("1 malformed"), HasSubstr("line 2")));
  EXPECT_THAT(mistake({"inspect", "nosuch"}), HasSubstr("nosuch"));
  EXPECT_THAT(mistake({"merge", "o", "--output", "o"}), HasSubstr("one of the stores"));
  for (const char* command : {"tokenize", "inspect", "verify", "merge"})
    EXPECT_THAT(run({command, "--help"}).out,
                HasSubstr("Example:\n  kintsugi data " + std::string(command)));
}

TEST_F(DataCommandTest, AFullDiskLeavesNothing) {
  KINTSUGI_SKIP_UNDER_THREAD_SANITIZER();
  directory_.write("long.txt", small_corpus(200'000));
  largest_file_ = 100'000;
  const DataCommandResult outcome =
      run({"tokenize", "--input", "long.txt", "--tokenizer", "bytes", "--output", "full"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("cannot write"));
  for (const auto& entry : fs::directory_iterator(directory_.path()))
    EXPECT_THAT(entry.path().filename().string(), Not(testing::StartsWith("full")));
  largest_file_ = 0;
  EXPECT_EQ(
      run({"tokenize", "--input", "long.txt", "--tokenizer", "bytes", "--output", "full"}).code, 0);
}

TEST_F(DataCommandTest, UnknownWordsAreNamed) {
  EXPECT_THAT(mistake({"tokenise"}), HasSubstr("tokenise"));
  EXPECT_THAT(mistake({}), HasSubstr("--help"));
}

}  // namespace
}  // namespace kintsugi
