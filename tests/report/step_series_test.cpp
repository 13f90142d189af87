// The columns of metrics.jsonl, from files whose values have closed forms.
#include "report/runs/step_series.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "core/json_members.h"
#include "report/runs/series_view.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// loss = 10 - step / 1000, tokens = 64 step, ten seconds per step.
std::string series_line(int step, const std::string& more = "") {
  return fmt::format(
      "{{\"step\":{},\"seq\":{},\"tokens\":{},\"loss\":{},\"grad_norm\":1.5,\"lr\":0.001,"
      "\"step_time_s\":2.0,\"tokens_per_s\":32,\"mfu\":null,\"energy_scope\":\"node\","
      "\"energy_since_launch\":{{\"node\":{{\"j\":3}}}},\"time_s\":{}{}}}\n",
      step, step, 64 * step, 10 - step / 1000.0, 1.7e9 + 10 * step, more);
}

class StepSeriesFile : public testing::Test {
 protected:
  void append(const std::string& text) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }
  void append_steps(int from, int to) {
    std::string text;
    for (int step = from; step <= to; ++step) text += series_line(step);
    append(text);
  }

  TemporaryDirectory directory_;
  fs::path path_ = directory_ / "metrics.jsonl";
};

TEST_F(StepSeriesFile, ReadsColumnsAndAxes) {
  append_steps(1, 100);
  StepSeries series(path_);
  EXPECT_EQ(series.update(), StepSeries::Change::Grown);
  ASSERT_EQ(series.rows(), 100u);
  EXPECT_EQ(series.records(), 100);
  EXPECT_EQ(series.step(41), 42);
  EXPECT_EQ(series.tokens(41), 42 * 64);
  EXPECT_NEAR(series.hours(41), 41 * 10 / 3600.0, 1e-9) << "time_s since the first record";
  EXPECT_EQ(series.value("loss", 41), 10 - 0.042f);
  EXPECT_TRUE(std::isnan(series.value("none", 41)));
  EXPECT_EQ(series.keys(),
            (std::vector<std::string>{"loss", "grad_norm", "lr", "step_time_s", "tokens_per_s"}))
      << "mfu is null in all records, so nothing is known of it";
  EXPECT_EQ(series.update(), StepSeries::Change::None);
}

TEST_F(StepSeriesFile, HoursAreTheSumOfStepTimesInOlderRuns) {
  append("{\"step\":1,\"step_time_s\":1800}\n{\"step\":2,\"step_time_s\":5400}\n");
  StepSeries series(path_);
  series.update();
  EXPECT_DOUBLE_EQ(series.hours(0), 0.5);
  EXPECT_DOUBLE_EQ(series.hours(1), 2.0);
}

TEST_F(StepSeriesFile, KeepsTheGapsOfTheClock) {
  append("{\"step\":1,\"time_s\":1000}\n{\"step\":2,\"time_s\":4600}\n");
  append("{\"step\":3,\"time_s\":4000}\n{\"step\":4,\"time_s\":7600}\n");
  StepSeries series(path_);
  series.update();
  EXPECT_DOUBLE_EQ(series.hours(1), 1.0);
  EXPECT_DOUBLE_EQ(series.hours(2), 1.0) << "a clock that was set back does not go back";
  EXPECT_DOUBLE_EQ(series.hours(3), 2.0);
}

TEST_F(StepSeriesFile, AveragesBuckets) {
  append_steps(1, 1000);
  StepSeries series(path_);
  series.update();
  const SeriesPoints points = series.points("loss", {.max_points = 100});
  ASSERT_EQ(points.x.size(), 100u);
  for (std::size_t i = 0; i < 100; ++i) {  // bucket i has steps 10 i + 1 to 10 i + 10
    const double x = 10.0 * static_cast<double>(i) + 5.5;
    EXPECT_DOUBLE_EQ(points.x[i], x);
    EXPECT_NEAR(points.y[i], 10 - x / 1000, 1e-6);
    EXPECT_NEAR(points.low[i], 10 - (x + 4.5) / 1000, 1e-6);
    EXPECT_NEAR(points.high[i], 10 - (x - 4.5) / 1000, 1e-6);
  }
  EXPECT_TRUE(series.points("none", {}).x.empty());
}

TEST_F(StepSeriesFile, ZoomsIntoARange) {
  append_steps(1, 1000);
  StepSeries series(path_);
  series.update();
  const SeriesPoints steps = series.points("loss", {.from = 100, .to = 109.5, .max_points = 50});
  EXPECT_EQ(steps.x.size(), 10u);
  EXPECT_EQ(steps.x.front(), 100);
  EXPECT_TRUE(steps.low.empty()) << "every point is one value";
  const SeriesPoints tokens = series.points(
      "loss", {.axis = SeriesAxis::Tokens, .from = 6400, .to = 64 * 109, .max_points = 50});
  EXPECT_EQ(tokens.x.size(), 10u);
  EXPECT_EQ(tokens.x.back(), 64 * 109);
  const SeriesPoints hours = series.points(
      "loss", {.axis = SeriesAxis::Hours, .from = 0.9999, .to = 1.5, .max_points = 1000});
  EXPECT_NEAR(hours.x.front(), 1.0, 1e-9) << "step 361";
  EXPECT_NEAR(hours.y.front(), 10 - 0.361, 1e-6);
}

TEST_F(StepSeriesFile, TheNewestRecordOfAStepCounts) {
  append_steps(1, 50);
  StepSeries series(path_);
  series.update();
  append("{\"step\":31,\"tokens\":1984,\"loss\":99,\"time_s\":1700000800}\n");
  EXPECT_EQ(series.update(), StepSeries::Change::Grown);
  ASSERT_EQ(series.rows(), 31u) << "the discarded steps behind the rewind are gone";
  EXPECT_EQ(series.records(), 31);
  EXPECT_EQ(series.rewinds(), 1);
  EXPECT_EQ(series.value("loss", 30), 99);
  EXPECT_TRUE(std::isnan(series.value("lr", 30)));
  EXPECT_NEAR(series.hours(30), (800 - 10) / 3600.0, 1e-9) << "wall time goes on";
}

TEST_F(StepSeriesFile, WaitsForTheEndOfALine) {
  append("{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo");
  StepSeries series(path_);
  series.update();
  EXPECT_EQ(series.rows(), 1u);
  append("ss\":3}\n");
  EXPECT_EQ(series.update(), StepSeries::Change::Grown);
  ASSERT_EQ(series.rows(), 2u);
  EXPECT_EQ(series.value("loss", 1), 3);
  EXPECT_EQ(series.damaged_lines(), 0);
}

TEST_F(StepSeriesFile, CountsDamagedLines) {
  for (const char* damaged :
       {"", "{\"step\":2", "nonsense", "{\"step\":2,\"loss\":nan}", "{\"step\":\"2\"}", "[1]",
        "{\"loss\":1}", "{\"step\":-1}", "{\"step\":2,}", "{\"step\":2} x", "{\"step\":1e400}"})
    append(std::string("{\"step\":1,\"loss\":2}\n") + damaged + "\n");
  StepSeries series(path_);
  series.update();
  EXPECT_EQ(series.rows(), 1u);
  EXPECT_EQ(series.damaged_lines(), 10) << "an empty line is none";
  EXPECT_EQ(series.first_damaged_line(), 4) << "records are the odd lines, line 2 is empty";
}

TEST_F(StepSeriesFile, ReadsAReplacedFileAnew) {
  append_steps(1, 20);
  StepSeries series(path_);
  series.update();
  fs::rename(path_, directory_ / "old");
  append_steps(1, 30);
  EXPECT_EQ(series.update(), StepSeries::Change::Replaced);
  EXPECT_EQ(series.rows(), 30u);
  fs::resize_file(path_, 0);
  append_steps(5, 6);
  EXPECT_EQ(series.update(), StepSeries::Change::Replaced) << "it is shorter";
  EXPECT_EQ(series.rows(), 2u);
  std::ofstream(path_) << series_line(7) << series_line(8) << series_line(9);
  EXPECT_EQ(series.update(), StepSeries::Change::Replaced) << "longer, but other text";
  EXPECT_EQ(series.step(0), 7);
  fs::remove(path_);
  EXPECT_EQ(series.update(), StepSeries::Change::Replaced);
  EXPECT_EQ(series.rows(), 0u);
}

TEST_F(StepSeriesFile, ReadsOnlyWhatWasAdded) {
  append_steps(1, 1000);
  StepSeries series(path_);
  series.update();
  const std::uint64_t before = series.bytes_read();
  EXPECT_EQ(before, fs::file_size(path_));
  append_steps(1001, 1001);
  series.update();
  EXPECT_EQ(series.bytes_read() - before, series_line(1001).size());
}

TEST_F(StepSeriesFile, NestedResultsAreKeys) {
  append(series_line(1, R"(,"valid":{"fi":{"loss":2.5,"bits_per_byte":null},"a\"b":{"loss":3}})"
                        R"(,"eval":[{"task":"arc","metric":"acc","value":0.5,"stderr":null}])"
                        R"(,"straggler":{"rank":3,"node":"n7","ratio":1.25},"energy_j":128)"));
  StepSeries series(path_);
  series.update();
  EXPECT_EQ(series.value("valid.fi.loss", 0), 2.5f);
  EXPECT_EQ(series.value("valid.a\"b.loss", 0), 3);
  EXPECT_TRUE(std::isnan(series.value("valid.fi.bits_per_byte", 0)));
  EXPECT_EQ(series.value("eval.arc.acc", 0), 0.5f);
  EXPECT_EQ(series.value("straggler.ratio", 0), 1.25f);
  EXPECT_EQ(series.value("j_per_token", 0), 2) << "128 J for the 64 tokens of the step";
}

TEST_F(StepSeriesFile, ValuesThatAreNotFiniteAreNull) {
  append("{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":null}\n{\"step\":3,\"loss\":1e300}\n");
  append("{\"step\":4}\n{\"step\":5,\"loss\":3}\n");
  StepSeries series(path_);
  series.update();
  const auto json = nlohmann::json::parse(series_json(series, {"loss", "no such key"}, {}));
  EXPECT_EQ(json, nlohmann::json::parse(R"({"axis":"step","rows":5,"last_step":5,"keys":
      {"loss":{"x":[1,2,3,5],"y":[2.0,null,null,3.0]}}})"));
  const SeriesPoints all = series.points("loss", {.max_points = 1});
  EXPECT_EQ(all.y, std::vector<float>{2.5f}) << "the mean of the finite values";
  EXPECT_EQ(all.low, std::vector<float>{2});
}

TEST_F(StepSeriesFile, RareKeysTakeLittleMemory) {
  std::string text;
  for (int step = 1; step <= 20'000; ++step)
    text += step % 1000 == 0 ? fmt::format("{{\"step\":{},\"a\":1,\"b\":2}}\n", step)
                             : fmt::format("{{\"step\":{},\"a\":1}}\n", step);
  append(text);
  StepSeries series(path_);
  series.update();
  EXPECT_EQ(series.points("b", {}).x.size(), 20u);
  EXPECT_EQ(series.points("b", {}).x[3], 4000);
  EXPECT_LT(series.memory_bytes(), 20'000u * (24 + 4) * 6 / 5 + 10'000) << "step, tokens, hours, a";
}

TEST_F(StepSeriesFile, KeepsMeansWithinALimitOfMemory) {
  constexpr std::size_t kLimit = 200'000;
  append_steps(1, 20'000);
  StepSeries series(path_, kLimit);
  series.update();
  EXPECT_LE(series.memory_bytes(), kLimit);
  EXPECT_LT(series.rows(), 10'000u);
  EXPECT_GT(series.rows(), 1'000u);
  EXPECT_NEAR(static_cast<double>(series.records()), 20'000, 300);
  EXPECT_EQ(series.step(series.rows() - 1), 20'000);
  const SeriesPoints points = series.points("loss", {.max_points = 50});
  EXPECT_EQ(points.x.size(), 50u);
  for (std::size_t i = 0; i < points.x.size(); ++i)  // a merged row has its last step: small bias
    EXPECT_NEAR(points.y[i], 10 - points.x[i] / 1000, 0.02);
}

TEST_F(StepSeriesFile, ATooLongLineIsLeftOut) {
  append(series_line(1));
  append("{\"step\":2,\"text\":\"" + std::string(9 << 20, 'x') + "\"}\n" + series_line(3));
  StepSeries series(path_);
  series.update();
  ASSERT_EQ(series.rows(), 2u);
  EXPECT_EQ(series.step(1), 3);
  EXPECT_EQ(series.damaged_lines(), 1);
}

TEST_F(StepSeriesFile, ManyKeysAreBounded) {
  std::string line = "{\"step\":1";
  for (int i = 0; i < 50'000; ++i) line += fmt::format(",\"key{}\":1", i);
  append(line + "}\n");
  StepSeries series(path_);
  series.update();
  EXPECT_EQ(series.rows(), 1u);
  EXPECT_LT(series.keys().size(), 3000u);
}

TEST_F(StepSeriesFile, NewRowsForALiveView) {
  append_steps(1, 1000);
  StepSeries series(path_);
  series.update();
  const auto json = nlohmann::json::parse(new_rows_json(series, "a\"b", 990, 500));
  EXPECT_EQ(json["id"], "a\"b");
  EXPECT_EQ(json["keys"]["loss"]["x"].size(), 10u);
  EXPECT_EQ(json["keys"]["loss"]["x"][0], 991);
  EXPECT_EQ(json["tokens"][9], 64'000);
  EXPECT_EQ(json["steps"][9], 1000);
  EXPECT_EQ(json["rows"], 1000);
  const auto many = nlohmann::json::parse(new_rows_json(series, "a", 0, 500));
  EXPECT_EQ(many["keys"]["loss"]["x"].size(), 500u);
  EXPECT_EQ(many["tokens"].size(), 500u);
}

TEST_F(StepSeriesFile, FollowsOnlyTheEnd) {
  append_steps(1, 10'000);
  StepSeries series = StepSeries::of_tail(path_, 8 << 10);
  EXPECT_EQ(series.update(), StepSeries::Change::Grown);
  EXPECT_LT(series.bytes_read(), 80u << 10);
  EXPECT_EQ(series.damaged_lines(), 0);
  ASSERT_GT(series.rows(), 10u);
  ASSERT_LT(series.rows(), 60u);
  const std::size_t last = series.rows() - 1;
  EXPECT_EQ(series.step(last), 10'000);
  EXPECT_NEAR(series.hours(last), 9999 * 10 / 3600.0, 1e-6) << "since the first record";
  append_steps(10'001, 10'003);
  EXPECT_EQ(series.update(), StepSeries::Change::Grown);
  EXPECT_EQ(series.first_row_after(10'000), last + 1);
  EXPECT_EQ(series.rows(), last + 4);
  append_steps(9'000, 9'001);
  series.update();
  EXPECT_EQ(series.rewinds(), 1) << "to a step before the first one that was read";
}

TEST_F(StepSeriesFile, TheCacheDropsWhatWasNotUsed) {
  for (const char* run : {"a", "b", "c", "d"}) {
    fs::create_directory(directory_ / run);
    std::ofstream file(directory_ / run / "metrics.jsonl");
    for (int step = 1; step <= 5000; ++step) file << series_line(step);
  }
  StepSeries alone(directory_ / "a" / "metrics.jsonl");
  alone.update();
  const std::size_t limit = alone.memory_bytes() * 7 / 2;
  SeriesCache cache(limit);
  std::uint64_t read = 0;
  const auto use = [&](const char* run) {
    cache.with(directory_ / run, [&](const StepSeries& series) {
      EXPECT_EQ(series.rows(), 5000u);
      read = series.bytes_read();
    });
    return read;
  };
  for (const char* run : {"a", "b", "a", "c", "d", "a"}) use(run);
  EXPECT_LE(cache.memory_bytes(), limit);
  EXPECT_GE(cache.memory_bytes(), alone.memory_bytes() * 5 / 2) << "a, c and d";
}

TEST_F(StepSeriesFile, ASlowRunDoesNotBlockOthers) {
  for (const char* run : {"slow", "other"}) {
    fs::create_directory(directory_ / run);
    std::ofstream(directory_ / run / "metrics.jsonl") << series_line(1);
  }
  SeriesCache cache;
  std::future<void> other;
  cache.with(directory_ / "slow", [&](const StepSeries&) {
    other = std::async(std::launch::async, [&] {
      cache.with(directory_ / "other", [](const StepSeries& of) { EXPECT_EQ(of.rows(), 1u); });
    });
    // A cache with one lock waits here until the time is over, and fails.
    EXPECT_EQ(other.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  });
}

TEST_F(StepSeriesFile, TheCacheServesManyThreads) {
  for (const char* run : {"a", "b", "c", "d", "e"}) {
    fs::create_directory(directory_ / run);
    std::ofstream file(directory_ / run / "metrics.jsonl");
    for (int step = 1; step <= 500; ++step) file << series_line(step);
  }
  StepSeries alone(directory_ / "a" / "metrics.jsonl");
  alone.update();
  const std::size_t limit = alone.memory_bytes() * 7 / 2;
  SeriesCache cache(limit);
  std::vector<std::future<void>> threads;
  for (int thread = 0; thread < 8; ++thread)
    threads.push_back(std::async(std::launch::async, [&, thread] {
      for (int i = 0; i < 50; ++i)
        cache.with(directory_ / std::string(1, static_cast<char>('a' + (thread + i) % 5)),
                   [](const StepSeries& of) { EXPECT_EQ(of.rows(), 500u); });
    }));
  for (std::future<void>& thread : threads) thread.get();
  EXPECT_LE(cache.memory_bytes(), limit);
}

TEST(JsonMembersTest, RefusesDeepNesting) {
  EXPECT_FALSE(parse_untrusted_json(std::string(100'000, '[')).has_value());
  EXPECT_FALSE(parse_untrusted_json(std::string(100, '[') + std::string(100, ']')).has_value());
  EXPECT_TRUE(parse_untrusted_json("{\"[[\":[[\"\\\"\"]]}").has_value());
}

TEST(JsonMembersTest, RefusesObjectsWithVeryManyMembers) {
  const auto object = [](int members) {
    std::string text = "{\"a:b\":\":\"";
    for (int i = 1; i < members; ++i) text += fmt::format(",\"{}\":{{\"x\":0}}", i);
    return text + "}";
  };
  const auto kept = parse_untrusted_json("[" + object(2048) + "," + object(2048) + "]");
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ((*kept)[1].size(), 2048u);
  std::string problem;
  EXPECT_FALSE(parse_untrusted_json("[" + object(2049) + "]", &problem).has_value());
  EXPECT_EQ(problem, "an object has more than 2048 members");
  EXPECT_FALSE(parse_untrusted_json("{", &problem).has_value());
  EXPECT_EQ(problem, "it is not JSON");
}

}  // namespace
}  // namespace kintsugi
