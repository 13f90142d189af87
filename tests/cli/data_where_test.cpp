// kintsugi data where reports the tokens that the run reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/hash.h"
#include "data/sampling/batch_loader.h"
#include "support/counting_store.h"
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class DataWhereTest : public ProgramTest {
 protected:
  // The output of `kintsugi data where run.yaml …`, including errors.
  std::string where(const std::string& arguments, int expected_code = 0) {
    const Outcome outcome = run_kintsugi("data where run.yaml " + arguments);
    EXPECT_EQ(outcome.code, expected_code);
    return outcome.out + outcome.error;
  }

  const std::vector<std::int32_t> lengths_ = {30, 7, 55, 18, 90, 3, 3, 44};
  std::vector<std::vector<std::int32_t>> documents_ = counting_documents(lengths_);
  std::string store_ = write_store(directory_, "numbers", documents_);
  // 6 samples of 24 tokens per step
  std::string config_ = directory_.write(
      "run.yaml", small_config(store_, directory_ / "run", "steps: 40, eval_every: 0"));
};

TEST_F(DataWhereTest, NamesTheTokensOfAStep) {
  for (const char* more : {"", " --set data.order=megatron --set data.split=1"}) {
    RunConfig config = parse_run_config(
        small_config(store_, directory_ / "run", "steps: 40, eval_every: 0"), "test.yaml",
        *more == 0 ? std::vector<std::string>{}
                   : std::vector<std::string>{"data.order=megatron", "data.split=1"});
    const RunData data(config);
    for (const std::int64_t step : {1, 17, 40}) {
      const json samples =
          json::parse(where("--json --step " + std::to_string(step) + std::string(more)));
      ASSERT_EQ(samples.size(), 6u);
      BatchLoader loader(
          data.order(), data.sample_options(),
          {.schedule = BatchSchedule(6), .first_step = step, .batches = 1, .depth = 1});
      const SampleBatch& batch = loader.next();
      for (std::size_t i = 0; i < 6; ++i) {
        const json& sample = samples[i];
        EXPECT_EQ(sample.at("sample"), 6 * (step - 1) + static_cast<std::int64_t>(i));
        EXPECT_EQ(sample.at("source"), "numbers");
        // Token n of the store has id n.
        std::vector<std::int32_t> ids;
        for (const json& range : sample.at("documents")) {
          EXPECT_EQ(range.at("shard"), store_);
          const auto& document = documents_.at(range.at("document").get<std::size_t>());
          for (std::size_t j = 0; j < range.at("tokens").get<std::size_t>(); ++j) {
            ids.push_back(document.at(range.at("offset").get<std::size_t>() + j));
            EXPECT_EQ(ids.back(),
                      range.at("first_token").get<std::int32_t>() + static_cast<std::int32_t>(j));
          }
        }
        ASSERT_EQ(ids.size(), 25u);
        for (std::size_t j = 0; j < 24; ++j) {
          EXPECT_EQ(batch.ids[24 * i + j], ids[j]);
          EXPECT_EQ(batch.targets[24 * i + j], ids[j + 1]);
        }
      }
    }
  }
}

// Batches of 2, 2, 4, 6, 6, …
TEST_F(DataWhereTest, FollowsARamp) {
  const std::vector<std::pair<int, std::vector<int>>> steps = {
      {1, {0, 1}}, {2, {2, 3}}, {3, {4, 5, 6, 7}}, {4, {8, 9, 10, 11, 12, 13}}};
  for (const auto& [step, expected] : steps) {
    const json samples =
        json::parse(where("--json --set 'batch.ramp={start: 2, increment: 2, samples: 8}' --step " +
                          std::to_string(step)));
    std::vector<int> numbers;
    for (const json& sample : samples) numbers.push_back(sample.at("sample"));
    EXPECT_EQ(numbers, expected) << step;
  }
}

// Steps 1 to 3 have 2, 2 and 4 samples of a ramp, 4 and 5 have 4, and 6 on have 2. A branch at step
// 5 knows this too, from its history.
TEST_F(DataWhereTest, FollowsChangesOfTheBatch) {
  const auto config = [&](const std::string& run, const std::string& train,
                          const std::vector<std::string>& more) {
    return parse_run_config(small_config(store_, directory_ / run, "eval_every: 0, " + train),
                            "test.yaml", more);
  };
  const auto numbers = [&](int step) {
    std::vector<int> samples;
    for (const json& sample : json::parse(where("--json --step " + std::to_string(step))))
      samples.push_back(sample.at("sample"));
    return samples;
  };
  const auto expect_changed = [&] {
    EXPECT_EQ(numbers(2), (std::vector{2, 3}));
    EXPECT_EQ(numbers(3), (std::vector{4, 5, 6, 7}));
    EXPECT_EQ(numbers(4), (std::vector{8, 9, 10, 11}));
    EXPECT_EQ(numbers(5), (std::vector{12, 13, 14, 15}));
  };
  run_training(
      to_yaml(config("run", "steps: 3", {"batch.ramp={start: 2, increment: 2, samples: 8}"})));
  run_training(to_yaml(config("run", "steps: 5", {"batch.global=4"})));
  const RunConfig last = config("run", "steps: 8", {"batch.global=2"});
  directory_.write("run.yaml", to_yaml(last));
  for (const bool trained : {false, true}) {
    if (trained) run_training(to_yaml(last));
    expect_changed();
    EXPECT_EQ(numbers(6), (std::vector{16, 17}));
    EXPECT_EQ(numbers(8), (std::vector{20, 21}));
    EXPECT_THAT(where("--sample 22", 2), HasSubstr("samples 0 to 21"));
  }
  const std::string from = (directory_ / "run/checkpoints/step-00000005").string();
  const RunConfig branch = config("branch", "steps: 2", {"run.from=" + from});
  directory_.write("run.yaml", to_yaml(branch));
  for (const bool trained : {false, true}) {
    if (trained) run_training(to_yaml(branch));
    expect_changed();
    EXPECT_EQ(numbers(7), (std::vector{6, 7, 8, 9, 10, 11}));
  }
}

// 250 tokens in samples of 24; documents of 55, 90, 44 and 30 tokens are longer.
TEST_F(DataWhereTest, NamesTheDocumentsOfAPackedSample) {
  const json samples =
      json::parse(where("--json --step 1 --set data.packing=best_fit --set "
                        "data.valid_fraction=0 --set batch.global=12"));
  ASSERT_EQ(samples.size(), 12u);
  std::vector<int> seen(250, 0);
  for (const json& sample : samples) {
    int tokens = 0;
    for (const json& range : sample.at("documents")) {
      const int count = range.at("tokens"), first = range.at("first_token");
      tokens += count;
      for (int i = 0; i < std::min(count, 24); ++i) ++seen.at(static_cast<std::size_t>(first + i));
    }
    EXPECT_LE(tokens, 25);
  }
  // 7 full pieces, and rests and documents of 20 + 3, 18 + 6, 18 + 3, 7 + 7.
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), 0) << "12 samples are more than an epoch";
}

// Neither in the run's own directory nor in that of a run that it continues, also if that was
// moved.
TEST_F(DataWhereTest, WritesNothing) {
  namespace fs = std::filesystem;
  const std::string packed = " --set data.packing=best_fit";
  const std::string own = where("--json --step 2" + packed);
  EXPECT_FALSE(fs::exists(directory_ / "run"));
  const std::string base = small_config(store_, directory_ / "base", "steps: 3, eval_every: 0");
  run_training(to_yaml(parse_run_config(base, "base.yaml", {"data.packing=best_fit"})));
  const RunConfig branch = parse_run_config(
      small_config(store_, directory_ / "run", "steps: 40, eval_every: 0"), "branch.yaml",
      {"data.packing=best_fit", "run.from=" + (directory_ / "base").string()});
  directory_.write("run.yaml", to_yaml(branch));
  const std::string with_file = where("--json --step 2");
  EXPECT_FALSE(fs::exists(directory_ / "run"));
  run_training(to_yaml(branch));
  fs::rename(directory_ / "base", directory_ / "moved");
  fs::remove_all(directory_ / "run/packing");
  EXPECT_EQ(where("--json --step 2"), with_file);
  EXPECT_FALSE(fs::exists(directory_ / "base"));
  directory_.write("base", "in the way");
  EXPECT_EQ(where("--json --step 2"), with_file);
  // The first 40 steps of the branch are those of the run without a base.
  EXPECT_EQ(json::parse(where("--json --step 5"))[0].at("documents"),
            json::parse(own)[0].at("documents"));
  EXPECT_FALSE(fs::exists(directory_ / "run/packing"));
}

TEST_F(DataWhereTest, PrintsForPeople) {
  EXPECT_THAT(where("--step 2"), AllOf(HasSubstr("sample 6: numbers, epoch "),
                                       HasSubstr(store_ + " token "), HasSubstr(": document ")));
}

// A branch of the run at step 3: steps 1 to 3 were trained by the base run on its own data.
TEST_F(DataWhereTest, StepsOfTheRunThatARunContinues) {
  const std::string other = write_store(directory_, "other", counting_documents({120, 90}));
  run_training(small_config(store_, directory_ / "base", "steps: 3, eval_every: 0"));
  const std::string yaml = small_config(other, directory_ / "run", "steps: 5, eval_every: 0");
  RunConfig branch = parse_run_config(
      yaml, "branch.yaml", {"run.from=" + (directory_ / "base").string(), "batch.global=4"});
  directory_.write("run.yaml", to_yaml(branch));
  for (const bool trained : {false, true}) {
    if (trained) {
      run_training(to_yaml(branch));
      directory_.write("run.yaml", read_text_file(directory_ / "run/config.yaml"));
      std::filesystem::rename(directory_ / "base", directory_ / "moved");
    }
    const json before = json::parse(where("--json --step 3"));
    ASSERT_EQ(before.size(), 6u);
    EXPECT_EQ(before[0].at("run"), "base");
    EXPECT_EQ(before[0].at("source"), "numbers");
    EXPECT_EQ(before[0].at("sample"), 12);
    const json after = json::parse(where("--json --step 5"));
    ASSERT_EQ(after.size(), 4u);
    EXPECT_EQ(after[0].at("run"), "run");
    EXPECT_EQ(after[0].at("source"), "other");
    EXPECT_EQ(after[0].at("sample"), 4);
    EXPECT_EQ(json::parse(where("--json --stage 2 --sample 5"))[0].at("documents"),
              after[1].at("documents"));
    EXPECT_THAT(where("--step 9", 2), HasSubstr("--step is 9, but the run has steps 1 to 8"));
    EXPECT_THAT(where("--sample 5", 2), AllOf(HasSubstr("--sample needs --stage"),
                                              HasSubstr("1: run base (steps 1 to 3)")));
    EXPECT_THAT(where("--stage 1 --sample 18", 2), HasSubstr("has samples 0 to 17"));
  }
  EXPECT_THAT(where("--step 2"), HasSubstr("run base (steps 1 to 3)"));
  write_store(directory_, "numbers", counting_documents({40, 70, 80}));
  EXPECT_THAT(where("--step 2", 2), HasSubstr("is no longer the data that was trained on"));
}

// The order before and after would overlap, and the steps before would be reported with wrong
// samples.
TEST_F(DataWhereTest, AnotherSeedOfTheOrderIsRefused) {
  for (const std::string order : {"", " --set data.order=megatron --set data.split=1"}) {
    std::filesystem::remove_all(directory_ / "run");
    const std::string train = "train run.yaml --set train.checkpoint_every=1" + order;
    // A longer run has another order of Megatron, so that it is stopped instead.
    ASSERT_EQ(run_kintsugi(train + " --set train.steps=4").code, 0);
    const std::string known = where("--step 2 --set train.steps=4" + order);
    std::filesystem::remove_all(directory_ / "run/checkpoints/step-00000004");
    std::filesystem::remove(directory_ / "run/checkpoints/latest");
    std::filesystem::create_directory_symlink("step-00000003",
                                              directory_ / "run/checkpoints/latest");
    const std::string other = " --set train.steps=4 --set data.seed=9";
    const Outcome resumed = run_kintsugi(train + other);
    EXPECT_EQ(resumed.code, 2);
    EXPECT_THAT(resumed.error, AllOf(HasSubstr("data.seed"), HasSubstr("was 3, now 9")));
    EXPECT_THAT(where("--step 2" + order + other, 2),
                AllOf(HasSubstr("no longer the data that was trained on"), HasSubstr("was 3")));
    EXPECT_EQ(where("--step 2 --set train.steps=4" + order), known);
    EXPECT_EQ(run_kintsugi(train + " --set train.steps=4 --set data.seed=3").code, 0)
        << "the same seed in other words";
  }
}

// Fingerprints of earlier versions leave the seed out. Such runs continue with the same seed, which
// their saved configuration has, and with no other.
TEST_F(DataWhereTest, RunsOfEarlierVersionsContinueWithTheSameSeed) {
  ASSERT_EQ(run_kintsugi("train run.yaml --set train.steps=2").code, 0);
  RunConfig config = load_run_config(directory_ / "run/config.yaml", {});
  const std::string unseeded = hex64(RunData(config).order().unseeded_fingerprint());
  const auto change = [&](const std::string& file, auto&& edit) {
    json content = json::parse(content_of(file));
    edit(content);
    directory_.write(file, content.dump());
  };
  const std::string checkpoint = "run/checkpoints/step-00000002/";
  change(checkpoint + "trainer.json", [&](json& state) { state["data"] = unseeded; });
  change(checkpoint + "checksums.json", [&](json& sums) {
    sums["files"]["trainer.json"] = hex64(hash64(content_of(checkpoint + "trainer.json")));
  });
  change("run/data.json", [&](json& record) {
    record["fingerprint"] = unseeded;
    for (json& file : record["files"]) file.erase("read");
  });
  const Outcome other = run_kintsugi("train run.yaml --set train.steps=3 --set data.seed=9");
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.error, HasSubstr("was 3, now 9"));
  EXPECT_THAT(where("--step 1 --set data.seed=9", 2), HasSubstr("was 3, now 9"));
  where("--step 1");
  const Outcome same = run_kintsugi("train run.yaml --set train.steps=3");
  EXPECT_EQ(same.code, 0) << same.error;
  EXPECT_THAT(same.error, testing::Not(HasSubstr("has no record"))) << "data.json is its own";
  EXPECT_NE(json::parse(content_of("run/checkpoints/step-00000003/trainer.json")).at("data"),
            unseeded);
}

TEST_F(DataWhereTest, StepsOfEveryStage) {
  const std::string other = write_store(directory_, "other", counting_documents({120, 90}));
  std::string yaml = small_config(store_, directory_ / "run", "eval_every: 0");
  yaml.replace(yaml.find("warmup_steps: 2"), 15, "warmup_steps: 0");
  yaml += fmt::format(
      "stages: [{{name: one, steps: 2}}, {{name: two, steps: 3, batch: {{global: 4}}, "
      "data: {{train: [{{path: \"{}\"}}]}}}}]\n",
      other);
  directory_.write("run.yaml", yaml);
  for (const bool trained : {false, true}) {
    if (trained) {
      EXPECT_EQ(run_kintsugi("train run.yaml").code, 0);
    }
    const json first = json::parse(where("--json --step 2")),
               second = json::parse(where("--json --step 4"));
    ASSERT_EQ(first.size(), 6u);
    EXPECT_EQ(first[0].at("stage"), "one");
    EXPECT_EQ(first[0].at("source"), "numbers");
    EXPECT_EQ(first[0].at("sample"), 6);
    ASSERT_EQ(second.size(), 4u);
    EXPECT_EQ(second[0].at("stage"), "two");
    EXPECT_EQ(second[0].at("source"), "other");
    EXPECT_EQ(second[0].at("sample"), 4);
    EXPECT_EQ(json::parse(where("--json --stage two --sample 6"))[0].at("documents"),
              second[2].at("documents"));
    EXPECT_THAT(
        where("--stage tow --sample 6", 2),
        AllOf(HasSubstr("no such stage"), HasSubstr("stage two of run run (steps 3 to 5)")));
    EXPECT_THAT(where("--step 6", 2), HasSubstr("steps 1 to 5"));
  }
}

TEST_F(DataWhereTest, AStepThatTheRunDoesNotHave) {
  EXPECT_THAT(where("--step 41", 2), HasSubstr("--step is 41, but the run has steps 1 to 40"));
  EXPECT_THAT(where("--step 0", 2), HasSubstr("steps 1 to 40"));
}

}  // namespace
}  // namespace kintsugi
