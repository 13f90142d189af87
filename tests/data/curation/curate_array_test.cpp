// Curations that are done by several jobs, which stop, race, and differ in number between tries.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "data/curation/curate_job.h"
#include "data/curation/curation_directory.h"
#include "support/directory_contents.h"
#include "support/errors.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using State = CurateResult::State;
using testing::AllOf;
using testing::HasSubstr;

TEST(CurationUnits, AreConsecutiveInputsOfASize) {
  const TemporaryDirectory directory;
  std::vector<fs::path> inputs;
  for (const int bytes : {10, 10, 10, 35, 1, 29, 1})
    inputs.push_back(directory.write(fmt::format("{}.txt", inputs.size()),
                                     std::string(static_cast<std::size_t>(bytes), 'x')));
  const auto sizes = [&](std::uint64_t unit) {
    std::vector<std::size_t> sizes;
    for (const auto& one : CurationDirectory::units_of(inputs, unit)) sizes.push_back(one.size());
    return sizes;
  };
  EXPECT_EQ(sizes(30), (std::vector<std::size_t>{3, 1, 2, 1}));
  EXPECT_EQ(sizes(1), std::vector<std::size_t>(7, 1));
  EXPECT_EQ(sizes(1000), std::vector<std::size_t>{7});
  EXPECT_TRUE(CurationDirectory::units_of({}, 1).empty());
}

class CurationArray : public ProgramTest {
 protected:
  void SetUp() override {
    std::mt19937 random(1);
    fs::create_directory(directory_ / "in");
    for (int file = 0; file < 9; ++file) {
      std::string lines;
      for (int i = 0; i < 60; ++i) {
        std::string text = fmt::format("Document {} {}", file, i);
        for (unsigned words = random() % 200; words > 0; --words)
          text += fmt::format(" word{}", random() % 1000);
        lines += Json{{"text", text}, {"language", i % 2 == 0 ? "fi" : "sv"}}.dump() + "\n";
      }
      inputs_.push_back(directory_.write(fmt::format("in/{}.jsonl", file), lines));
    }
    directory_.write("r.yaml", kRecipe);
    run(job({}, "whole"));
    whole_ = directory_contents(directory_ / "whole");
  }
  CurateOptions job(std::optional<ArrayTask> task, const std::string& output) {
    CurateOptions options;
    options.recipe = read_recipe(kRecipe, "r.yaml");
    options.inputs = inputs_;
    options.output = directory_ / output;
    options.threads = 2;
    options.shard_bytes = 60'000;  // two files or so; a shard ends with each of them
    options.batch_bytes = 10'000;
    options.job = task;
    return options;
  }
  static CurateResult run(const CurateOptions& options, int batches = 1'000'000) {
    return curate(options, [&](const CurateProgress&) { return --batches > 0; });
  }
  void expect_whole(const std::string& output) {
    const auto files = directory_contents(directory_ / output);
    EXPECT_EQ(files.size(), whole_.size());
    for (const auto& [name, bytes] : whole_)
      EXPECT_TRUE(files.contains(name) && files.at(name) == bytes) << output << "/" << name;
  }

  static constexpr const char* kRecipe =
      "steps:\n  - gopher_quality: {min_stop_words: 0}\n  - sample: {keep: 0.7}\n";
  std::vector<fs::path> inputs_;
  std::map<std::string, std::string> whole_;
};

TEST_F(CurationArray, AnyNumberOfJobsInAnyOrderGivesTheSameBytes) {
  EXPECT_GT(whole_.size(), 5u);
  std::mt19937 random(2);
  for (const std::size_t tasks : {1u, 2u, 4u, 30u}) {
    const std::string output = fmt::format("array-{}", tasks);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < tasks; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random);
    State state = State::UnitsLeft;
    for (const std::size_t number : order) {
      EXPECT_EQ(state, State::UnitsLeft) << "before the last unit";
      state = run(job(ArrayTask{number, tasks}, output)).state;
      if (state != State::UnitsLeft && number != order.back()) break;  // the others have no unit
    }
    EXPECT_EQ(state, State::Finished);
    expect_whole(output);
    EXPECT_EQ(run(job(ArrayTask{0, tasks}, output)).state, State::WasComplete);
  }
}

TEST_F(CurationArray, StoppedJobsContinueAlsoInOtherNumbers) {
  std::mt19937 random(3);
  int stops = 0;
  State state = State::UnitsLeft;
  while (state == State::UnitsLeft || state == State::Stopped) {
    const std::size_t tasks = 1 + random() % 4;
    const bool alone = random() % 4 == 0;  // one process that does all, in between
    const ArrayTask task{random() % tasks, tasks};
    state = run(job(alone ? std::optional<ArrayTask>() : task, "out"),
                1 + static_cast<int>(random() % 6))
                .state;
    stops += state == State::Stopped ? 1 : 0;
    ASSERT_LT(stops, 1000);
  }
  EXPECT_GT(stops, 5);
  expect_whole("out");
}

// Six processes at once, without locks: all of them may merge.
TEST_F(CurationArray, RacingJobsMergeOnce) {
  for (const std::string& locks : {std::string(), "LD_PRELOAD=" + fake_library("no_locks")}) {
    const Outcome outcome = run_in_shell(fmt::format(
        "rm -rf raced; for k in 0 1 2 3 4 5; do\n"
        "  {} \"$kintsugi\" data curate r.yaml --input 'in/*' --output raced --shard-size 60kB "
        "--threads 1 --job $k/6 >log-$k 2>&1 &\n  pids=\"$pids $!\"\ndone\n"
        "for pid in $pids; do wait $pid || exit 1; done",
        locks));
    EXPECT_EQ(outcome.code, 0) << run_in_shell("cat log-*").out;
    ASSERT_EQ(run_kintsugi("data curate r.yaml --input 'in/*' --output one --shard-size 60kB "
                           "--overwrite")
                  .code,
              0);
    EXPECT_EQ(directory_contents(directory_ / "raced"), directory_contents(directory_ / "one"));
  }
}

// What a process does at the end may be repeated after a kill at any of its steps.
TEST_F(CurationArray, AMergeThatWasKilledIsRepeated) {
  for (std::size_t number = 0; number < 2; ++number) run(job(ArrayTask{number, 3}, "before"));
  fs::copy(directory_ / "before", directory_ / "after", fs::copy_options::recursive);
  run(job(ArrayTask{2, 3}, "after"));
  expect_whole("after");
  // Some files were renamed already, and curation.json was not.
  CurateOptions last = job(ArrayTask{2, 3}, "before");
  int batches = 0;
  curate(last, [&](const CurateProgress&) { return ++batches < 3; });
  const auto unit = directory_ / "before/units/documents-00000-00000.jsonl.zst";
  ASSERT_TRUE(fs::exists(unit));
  fs::rename(unit, directory_ / "before/documents-00000.jsonl.zst");
  EXPECT_EQ(run(last).state, State::Finished);
  expect_whole("before");
  // Only the removal of units/ was left.
  fs::create_directories(directory_ / "after/units");
  directory_.write("after/units/00000.lock", "");
  EXPECT_EQ(run(job(ArrayTask{1, 3}, "after")).state, State::WasComplete);
  expect_whole("after");
}

TEST_F(CurationArray, OneJobPerUnitAndOutput) {
  const CurateOptions first = job(ArrayTask{0, 2}, "out");
  int inside = 0;
  curate(first, [&](const CurateProgress&) {
    if (inside++ > 0) return true;
    for (CurateOptions other : {first, job(ArrayTask{0, 3}, "out"), job({}, "out")})
      EXPECT_THAT(user_error_of([&] { run(other); }),
                  AllOf(HasSubstr("another process is writing unit 0 of"), HasSubstr("--output")));
    CurateOptions over = job({}, "out");
    over.overwrite = true;
    EXPECT_THAT(user_error_of([&] { run(over); }), HasSubstr("another process is writing unit"));
    EXPECT_THAT(user_error_of([&] { curation_stage(first); }), HasSubstr("another process"));
    EXPECT_EQ(run(job(ArrayTask{1, 2}, "out")).state, State::UnitsLeft);
    return true;
  });
  EXPECT_GT(inside, 0);
  expect_whole("out");
}

TEST_F(CurationArray, SaysWhatIsMissing) {
  const std::size_t units = *curation_stage(job({}, "out")).units;
  EXPECT_FALSE(fs::exists(directory_ / "out")) << "nothing is written";
  EXPECT_EQ(curation_stage(job({}, "out")).missing.size(), units);
  run(job(ArrayTask{1, 2}, "out"));
  std::vector<std::size_t> even;
  for (std::size_t unit = 0; unit < units; unit += 2) even.push_back(unit);
  EXPECT_EQ(curation_stage(job({}, "out")).missing, even);
  run(job({}, "out"));
  EXPECT_TRUE(curation_stage(job({}, "out")).missing.empty());
  CurateOptions other = job({}, "out");
  other.recipe.examples = 3;
  EXPECT_THAT(user_error_of([&] { curation_stage(other); }), HasSubstr("other settings"));
  CurateOptions later = job({}, "out");
  later.inputs.clear();
  EXPECT_EQ(curation_stage(later).units, std::nullopt);
}

TEST_F(CurationArray, MistakesAreOneSentence) {
  const auto mistake = [&](const std::string& arguments) {
    const Outcome outcome = run_kintsugi("data curate r.yaml --input 'in/*' " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  };
  EXPECT_THAT(mistake("--output out --job 3/3"), HasSubstr("the jobs have the numbers 0 to 2"));
  EXPECT_THAT(mistake("--output out --job 3"), HasSubstr("NUMBER/JOBS"));
  EXPECT_THAT(mistake("--output out --job 0/2 --overwrite"), HasSubstr("leave out --job"));
  EXPECT_FALSE(fs::exists(directory_ / "out"));
  fs::create_directory(directory_ / "old");
  directory_.write("old/documents-00000.jsonl.zst", "x");
  EXPECT_THAT(mistake("--output old"), HasSubstr("no curation.json"));
  EXPECT_FALSE(fs::exists(directory_ / "old/units"));
}

}  // namespace
}  // namespace kintsugi
