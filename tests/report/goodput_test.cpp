// Every second of a run's life is charged once. Hand-made events, with sums by hand.
#include "report/goodput.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "report/run_report.h"
#include "report/runs/goodput_timeline.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using Kind = GoodputEvent::Kind;

GoodputEvent start(double launched, double time, std::int64_t step) {
  return {.kind = Kind::Start, .time_s = time, .step = step, .launched_s = launched};
}
GoodputEvent progress(double time, std::int64_t step, double steps_s, double checkpoint_s = 0,
                      double validation_s = 0) {
  return {.kind = Kind::Progress,
          .time_s = time,
          .step = step,
          .steps_s = steps_s,
          .checkpoint_s = checkpoint_s,
          .validation_s = validation_s};
}
GoodputEvent end(GoodputEvent event, const std::string& state, int code) {
  event.kind = Kind::End;
  event.state = state;
  event.exit_code = code;
  return event;
}

void expect_seconds(const GoodputAmounts& s, const std::vector<double>& expected) {
  std::size_t i = 0;
  for (const GoodputCategory& one : goodput_categories()) {
    EXPECT_NEAR(s.*one.amount, expected.at(i), 1e-9) << one.name;
    ++i;
  }
}

TEST(Goodput, OneAttempt) {
  Goodput goodput;
  EXPECT_EQ(goodput.seconds().total(), 0);
  EXPECT_EQ(goodput.seconds().fraction(), 0);
  // 10 s of startup, 100 steps of 2 s, two saves of 5 s, a validation of 8 s, 1 s of records.
  goodput.add({start(1000, 1010, 0), progress(1070, 30, 60),
               end(progress(1229, 100, 200, 10, 8), "finished", 0)});
  // productive, recomputed, checkpoint, validation, startup, waiting, down, other
  expect_seconds(goodput.seconds(), {200, 0, 10, 8, 10, 0, 0, 1});
  EXPECT_DOUBLE_EQ(goodput.seconds().total(), 229);
  EXPECT_DOUBLE_EQ(goodput.seconds().fraction(), 200.0 / 229);
  ASSERT_EQ(goodput.attempts().size(), 1u);
  EXPECT_EQ(goodput.attempts()[0].state, "finished");
  EXPECT_EQ(goodput.attempts()[0].exit_code, 0);
  EXPECT_EQ(goodput.furthest(), 100);
}

// Killed after step 37, with the last record at step 30; continued from the checkpoint of step 20.
// A step takes 2 s.
TEST(Goodput, AKilledAttemptIsPartlyDoneAgain) {
  GoodputEvent second = start(1200, 1205, 20);
  second.alive_s = 1010 + 74;
  second.reached = 37;
  Goodput goodput;
  goodput.add({start(1000, 1010, 0), progress(1070, 30, 60), second,
               progress(1205 + 34, 37, 34),  // 17 steps again
               end(progress(1205 + 60, 50, 60), "finished", 0)});
  expect_seconds(goodput.seconds(), {74 + 26, 34, 0, 0, 10 + 5, 0, 1200 - 1084, 0});
  EXPECT_DOUBLE_EQ(goodput.seconds().total(), 1265 - 1000);
  ASSERT_EQ(goodput.attempts().size(), 2u);
  const Attempt& lost = goodput.attempts()[0];
  EXPECT_EQ(lost.state, "lost");
  EXPECT_EQ(lost.last_step, 37);
  EXPECT_EQ(lost.last_s, 1084);
  EXPECT_EQ(goodput.attempts()[1].first_step, 20);
}

// The same, with 4 s of the last 14 s outside of steps.
TEST(Goodput, OnlyTheStepsOfAKilledAttemptAreProductive) {
  GoodputEvent second = start(1200, 1205, 20);
  second.alive_s = 1084;
  second.reached = 37;
  second.unrecorded_steps_s = 10;
  Goodput goodput;
  goodput.add({start(1000, 1010, 0), progress(1070, 30, 60), second});
  expect_seconds(goodput.seconds(), {70, 0, 0, 0, 10 + 5, 0, 1200 - 1084, 4});
  second.unrecorded_steps_s = 1e9;
  Goodput clamped;
  clamped.add({start(1000, 1010, 0), progress(1070, 30, 60), second});
  expect_seconds(clamped.seconds(), {74, 0, 0, 0, 10 + 5, 0, 1200 - 1084, 0});
}

TEST(Goodput, TheTimeOfUnrecordedStepsIsThatOfTheirRecords) {
  const auto seconds = [](const std::vector<std::string>& records, std::int64_t last_step) {
    return signs_of("none", records, {.step = last_step}).unrecorded_steps_s;
  };
  const std::string first = R"({"step": 37, "step_time_s": 9})",
                    second = R"({"step": 21, "step_time_s": 2})",
                    third = R"({"step": 22, "step_time_s": 4})";
  EXPECT_EQ(seconds({first, second, third}, 20), 6) << "step 37 was one of an earlier attempt";
  EXPECT_EQ(seconds({first, second, third}, 21), 4);
  EXPECT_EQ(seconds({third}, 18), 16) << "three earlier steps took as long";
  EXPECT_EQ(seconds({"{", second, "[]", third}, 20), 6);
  EXPECT_EQ(seconds({first, second, third}, 22), std::nullopt) << "no new step";
  EXPECT_EQ(seconds({R"({"step": 22})"}, 20), std::nullopt) << "unknown";
  EXPECT_EQ(seconds({}, 0), std::nullopt);
}

// The same without a record at step 37: the time is divided by the steps.
TEST(Goodput, ARecordAfterTheBoundaryIsDivided) {
  GoodputEvent second = start(1200, 1205, 20);
  second.alive_s = 1084;
  second.reached = 37;
  Goodput goodput;
  goodput.add({start(1000, 1010, 0), progress(1070, 30, 60), second,
               end(progress(1205 + 60, 50, 60), "finished", 0)});
  expect_seconds(goodput.seconds(),
                 {74 + 60 * 13 / 30.0, 60 * 17 / 30.0, 0, 0, 15, 0, 1200 - 1084, 0});
}

// The second attempt dies before its first step: the last record of the metrics is of the first.
TEST(Goodput, AStepOfAnEarlierAttemptIsNotOneOfTheLostAttempt) {
  GoodputEvent third = start(1500, 1510, 20);
  third.alive_s = 1084;
  third.reached = 37;
  Goodput goodput;
  goodput.add({start(1000, 1010, 0), end(progress(1084, 37, 74), "failed", 1),
               start(1200, 1205, 20), third, end(progress(1544, 37, 34), "stopped", 75)});
  EXPECT_EQ(goodput.attempts().at(1).last_step, 20);
  expect_seconds(goodput.seconds(),
                 {74, 34, 0, 0, 10 + 5 + 10, 0, (1200 - 1084) + (1500 - 1205), 0});
  EXPECT_DOUBLE_EQ(goodput.seconds().total(), 544);
}

TEST(Goodput, TimeInTheQueueIsNotDownTime) {
  GoodputEvent first = start(1000, 1010, 0);
  first.submitted_s = 400;
  // The next job of a chain was submitted together with the first and waits for 50 s.
  GoodputEvent chained = start(1160, 1165, 45);
  chained.submitted_s = 1001;
  // A job that somebody submitted 100 s after the end.
  GoodputEvent later = start(1500, 1505, 60);
  later.submitted_s = 1300;
  // The same job starts the program again.
  GoodputEvent again = start(1600, 1605, 70);
  again.submitted_s = 1300;
  Goodput goodput;
  goodput.add({first, end(progress(1110, 45, 100), "stopped", 75), chained,
               end(progress(1200, 60, 35), "stopped", 75), later,
               end(progress(1520, 70, 15), "failed", 1), again,
               end(progress(1650, 100, 45), "finished", 0)});
  expect_seconds(goodput.seconds(),
                 {195, 0, 0, 0, 25, 600 + 50 + 200, (1300 - 1200) + (1600 - 1520), 0});
  EXPECT_DOUBLE_EQ(goodput.seconds().total(), 1650 - 400);
}

// Stages of one launch: starting the second one takes 7 s.
TEST(Goodput, TheNextStageIsTheSameAttempt) {
  Goodput goodput;
  goodput.add({start(1000, 1010, 0), progress(1050, 20, 40), start(1000, 1057, 20),
               end(progress(1087, 30, 30), "finished", 0)});
  ASSERT_EQ(goodput.attempts().size(), 1u);
  expect_seconds(goodput.seconds(), {70, 0, 0, 0, 17, 0, 0, 0});
}

// Ten steps are discarded, and the run goes on after a reload of 3 s.
TEST(Goodput, StepsAfterARewindAreDoneAgain) {
  Goodput goodput;
  goodput.add({start(1000, 1000, 0), progress(1030, 30, 30), progress(1033, 20, 30),
               end(progress(1053, 40, 50), "finished", 0)});
  expect_seconds(goodput.seconds(), {40, 10, 0, 0, 0, 0, 0, 3});
  EXPECT_DOUBLE_EQ(goodput.seconds().total(), 53);
}

TEST(Goodput, ClocksThatWereSetBackGiveNoNegativeTime) {
  Goodput goodput;
  goodput.add({start(1000, 1010, 0), progress(1020, 10, 10), progress(1015, 12, 12),
               start(900, 905, 5), end(progress(925, 20, 40), "finished", 0)});
  for (const GoodputCategory& one : goodput_categories())
    EXPECT_GE(goodput.seconds().*one.amount, 0) << one.name;
  EXPECT_DOUBLE_EQ(goodput.seconds().total(), 20 + 25);
}

TEST(Goodput, LinesAreReadAsTheyWereWritten) {
  GoodputEvent first = start(1000.25, 1010.5, 3);
  first.submitted_s = 12;
  first.alive_s = 999.125;
  first.reached = 7;
  first.unrecorded_steps_s = 2.5;
  GoodputEvent last = end(progress(1011, 4, 0.1, 0.25, 0.5), "stopped", 75);
  last.reason = "wall time";
  for (const GoodputEvent& event : {first, progress(1, 2, 3, 4, 5), last}) {
    const auto read = parse_goodput_line(to_json_line(event));
    ASSERT_TRUE(read);
    EXPECT_TRUE(*read == event) << to_json_line(event);
  }
}

TEST(Goodput, DamagedLinesAreLeftOut) {
  const TemporaryDirectory directory;
  directory.write("goodput.jsonl", to_json_line(start(0, 5, 0)) +
                                       "\n{\"event\":\"prog\n[]\n\n{\"event\":\"end\"}\n"
                                       "{\"event\":\"end\",\"time_s\":1e300}\n"
                                       "{\"event\":7,\"time_s\":1}\n\xff\xfe\n" +
                                       to_json_line(progress(9, 2, 4)) + "\n{\"event\":\"pro");
  EXPECT_EQ(read_goodput(directory / "goodput.jsonl").size(), 2u);
  EXPECT_TRUE(read_goodput(directory / "none").empty());
}

TEST(Goodput, ALedgerThatIsTooLongIsReported) {
  const TemporaryDirectory directory;
  const auto history_of = [&](const std::string& ledger) {
    directory.write("goodput.jsonl", ledger);
    return read_goodput_history(directory.path());
  };
  const std::string first = to_json_line(start(0, 5, 0)) + "\n";
  const GoodputHistory sparse = history_of(first + std::string(8 << 20, '\n'));
  EXPECT_EQ(sparse.problem, "") << "empty lines are no records";
  EXPECT_EQ(sparse.goodput.attempts().size(), 1u);
  std::string many = first;
  for (int i = 0; i < 200'000; ++i) many += "{\"event\":\"progress\",\"time_s\":9}\n";
  const GoodputHistory full = history_of(many);
  EXPECT_EQ(full.problem, "has more than 200000 records");
  EXPECT_TRUE(full.goodput.attempts().empty());
  std::filesystem::resize_file(directory / "goodput.jsonl", (64u << 20) + 1);
  EXPECT_EQ(read_goodput_history(directory.path()).problem, "is larger than 64 MiB");
  directory.write("status.json", "{\"state\": \"running\"}");
  EXPECT_THAT(report_text(read_run(directory.path())),
              testing::HasSubstr("goodput: unknown, goodput.jsonl is larger than 64 MiB"));
}

}  // namespace
}  // namespace kintsugi
