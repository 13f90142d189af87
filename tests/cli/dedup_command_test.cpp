// kintsugi data dedup as a user runs it: kills, signals, job arrays.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/file.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class DedupCommandTest : public ProgramTest {
 protected:
  // Files with each document of the one before, slightly changed.
  void write_corpus(int files, int documents) {
    for (int file = 0; file < files; ++file) {
      std::string lines;
      std::mt19937 random(5);
      for (int i = 0; i < documents; ++i) {
        std::string text;
        for (int word = 0; word < 150; ++word)
          for (int letter = 0; letter < 5; ++letter)
            text += letter == 4 ? ' ' : static_cast<char>('a' + random() % 26);
        lines += fmt::format("{{\"text\": \"{} {}\"}}\n", text, static_cast<char>('a' + file));
      }
      directory_.write(fmt::format("in{}.jsonl", file), lines);
    }
  }
  void check_kills(const std::string& arguments);
  pid_t start(const std::string& arguments) {
    const pid_t child = fork();
    if (child != 0) return child;
    const std::string command =
        fmt::format("cd '{}' && exec '{}' data dedup {} >/dev/null 2>&1",
                    directory_.path().string(), kintsugi_binary(), arguments);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(99);
  }
  std::map<std::string, std::string> files(const std::string& folder) {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(directory_ / folder))
      if (entry.is_regular_file())
        found[fs::relative(entry.path(), directory_ / folder)] = read_text_file(entry.path());
    return found;
  }
};

// `arguments` beside the inputs and the output.
void DedupCommandTest::check_kills(const std::string& arguments) {
  ASSERT_EQ(run_kintsugi("data dedup 'in*.jsonl' --output whole --memory 2MiB" + arguments).code, 0)
      << content_of("error.txt");
  const auto expected = files("whole");
  std::mt19937 random(7);
  int kills = 0;
  for (bool done = false; !done && kills < 30;) {
    const pid_t child =
        start(fmt::format("'in*.jsonl' --output killed --memory {}MiB --threads {}{}",
                          1 + random() % 8, 1 + random() % 3, arguments));
    int status = 0;
    usleep(static_cast<useconds_t>(random() % 150'000));
    if (waitpid(child, &status, WNOHANG) == 0) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
    }
    if (WIFSIGNALED(status)) {
      ++kills;
      continue;
    }
    ASSERT_EQ(WEXITSTATUS(status), 0);
    done = true;
  }
  EXPECT_GT(kills, 0);
  ASSERT_EQ(run_kintsugi("data dedup 'in*.jsonl' --output killed" + arguments).code, 0)
      << content_of("error.txt");
  const auto found = files("killed");
  for (const auto& [name, bytes] : expected)
    EXPECT_TRUE(found.contains(name) && found.at(name) == bytes) << name;
  for (const auto& [name, bytes] : found) EXPECT_TRUE(expected.contains(name)) << name;
}

TEST_F(DedupCommandTest, KilledJobsWriteTheSameBytes) {
  write_corpus(4, 1200);
  check_kills("");
}

TEST_F(DedupCommandTest, KilledJobsCutTheSameSubstrings) {
  write_corpus(4, 600);
  check_kills(" --by substrings --buckets 3");
}

TEST_F(DedupCommandTest, StopsOnASignalAndContinues) {
  write_corpus(4, 3000);
  const pid_t child = start("'in*.jsonl' --output o --threads 1");
  while (!fs::exists(directory_ / "o" / "dedup.json")) usleep(200);
  kill(child, SIGTERM);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 75);
  EXPECT_FALSE(fs::exists(directory_ / "o" / "dedup.lock"));
  const Outcome outcome = run_kintsugi("data dedup 'in*.jsonl' --output o");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("12000 documents"));
  EXPECT_THAT(outcome.out, HasSubstr("9000 duplicates removed (75.00 %), 3000 documents kept"));
  EXPECT_THAT(run_kintsugi("data dedup 'in*.jsonl' --output o").out, HasSubstr("nothing to do"));
}

TEST_F(DedupCommandTest, JobArraysAreOneJob) {
  write_corpus(3, 50);
  ASSERT_EQ(run_kintsugi("data dedup 'in*.jsonl' --output whole").code, 0);
  for (const char* stage : {"signatures", "pairs", "clusters", "remove"})
    for (int job = 0; job < 2; ++job) {
      const Outcome outcome = run_kintsugi(
          fmt::format("data dedup 'in*.jsonl' --output jobs --stage {} --job {}/2", stage, job));
      EXPECT_EQ(outcome.code, 0) << outcome.error;
    }
  EXPECT_TRUE(files("jobs") == files("whole"));
}

TEST_F(DedupCommandTest, TellsItsUnits) {
  write_corpus(3, 1);
  const auto units = [&](const std::string& arguments) {
    const Outcome outcome =
        run_kintsugi("data dedup 'in*.jsonl' --output o --units now " + arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    std::string text;
    const auto plan = nlohmann::json::parse(outcome.out);
    for (const auto& stage : plan.at("stages"))
      text +=
          fmt::format("{} {} ", stage.at("stage").get<std::string>(), stage.at("units").get<int>());
    return text;
  };
  EXPECT_EQ(units("--by substrings --buckets 7"),
            "samples 3 repeats 7 sequences 3 copies 7 remove 3 ");
  EXPECT_EQ(units("--preset curator --tasks 2"), "signatures 2 pairs 20 clusters 1 remove 2 ");
  EXPECT_FALSE(fs::exists(directory_ / "o"));
}

TEST_F(DedupCommandTest, PresetsHaveTheShapesOfOtherPrograms) {
  write_corpus(1, 2);
  for (const auto& [preset, shape] :
       {std::pair{"refinedweb", R"({"words": 5, "bands": 450, "rows": 20, "bits": 64})"},
        {"curator", R"({"characters": 24, "bands": 20, "rows": 13, "bits": 32})"},
        {"hplt", R"({"words": 1, "bands": 17, "rows": 15, "bits": 32})"}}) {
    const Outcome outcome =
        run_kintsugi(fmt::format("data dedup in0.jsonl --output {0} --preset {0}", preset));
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    auto expected = nlohmann::json::parse(shape);
    expected["hash"] = "xxhash";
    EXPECT_EQ(nlohmann::json::parse(content_of(fmt::format("{}/dedup.json", preset)))["minhash"],
              expected);
  }
}

TEST_F(DedupCommandTest, SaysWhatIsWrong) {
  write_corpus(1, 1);
  const auto mistake = [&](const std::string& arguments) {
    const Outcome outcome = run_kintsugi("data dedup " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  };
  EXPECT_THAT(mistake("in0.jsonl --output o --job 1/2"), HasSubstr("--job needs --stage"));
  for (const char* job : {"2/2", "x", "1/x", "0/0", "-1/2"})
    EXPECT_THAT(mistake(fmt::format("in0.jsonl --output o --stage pairs --job {}", job)),
                HasSubstr(job == std::string("1/x") ? "'x'" : "--job"));
  EXPECT_THAT(mistake("in0.jsonl --output o --bands 1000 --rows 1000"), HasSubstr("16384 values"));
  EXPECT_THAT(mistake("in0.jsonl --output o --by lines --stage pairs"),
              HasSubstr("--by lines has the stages sequences, copies, remove"));
  EXPECT_THAT(mistake("in0.jsonl --output o --by lines --cluster-size"),
              HasSubstr("no clusters of documents"));
  EXPECT_THAT(mistake("in0.jsonl --output o --words 2 --characters 3"),
              HasSubstr("one or the other"));
  EXPECT_THAT(mistake("in0.jsonl --output o --overwrite --stage pairs"), HasSubstr("--overwrite"));
  EXPECT_THAT(mistake("missing.jsonl --output o"), HasSubstr("missing.jsonl"));
  EXPECT_THAT(mistake("in0.jsonl --output o --text-key body"), HasSubstr("no key 'body'"));
}

}  // namespace
}  // namespace kintsugi
