// Lines of progress, with a clock that the test moves.
#include "core/progress.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace kintsugi {
namespace {

struct FakeTerminal {
  explicit FakeTerminal(bool live) : is_live(live) {}
  ProgressOutput output() {
    return {.live = is_live,
            .now_s = [this] { return now_s; },
            .show = [this](const std::string& line) { lines.push_back(line); }};
  }
  bool is_live;
  double now_s = 1000;
  std::vector<std::string> lines;
};

TEST(Progress, ShowsFractionAmountsRateAndTimeLeft) {
  FakeTerminal terminal(true);
  Progress progress("verify", 4 << 20, "bytes", terminal.output());
  terminal.now_s += 2;
  progress.add(1 << 20);
  ASSERT_EQ(terminal.lines.size(), 1u);
  // 1 MiB in 2 s: 0.5 MiB/s, so the other 3 MiB take 6 s.
  EXPECT_EQ(terminal.lines[0], "verify  25 %  1 MiB of 4 MiB  512 KiB/s  ETA 6 s");
}

TEST(Progress, CountsThingsByTheirName) {
  FakeTerminal terminal(true);
  Progress progress("evaluate", 40, "requests", terminal.output());
  terminal.now_s += 5;
  progress.set(10);
  ASSERT_EQ(terminal.lines.size(), 1u);
  EXPECT_EQ(terminal.lines[0], "evaluate  25 %  10 of 40 requests  2 requests/s  ETA 15 s");
}

TEST(Progress, WithoutATotalThereIsNoEta) {
  FakeTerminal terminal(true);
  Progress progress("read", 0, "documents", terminal.output());
  terminal.now_s += 1;
  progress.add(7);
  ASSERT_EQ(terminal.lines.size(), 1u);
  EXPECT_EQ(terminal.lines[0], "read  7 documents  7 documents/s");
}

TEST(Progress, WorkOfAnEarlierProcessIsNotInTheRate) {
  FakeTerminal terminal(true);
  Progress progress("tokenize", 100, "files", terminal.output());
  progress.start_at(50);
  terminal.now_s += 10;
  progress.set(60);
  ASSERT_EQ(terminal.lines.size(), 1u);
  EXPECT_EQ(terminal.lines[0], "tokenize  60 %  60 of 100 files  1 files/s  ETA 40 s");
}

TEST(Progress, ShortWorkLogsNothing) {
  FakeTerminal log(false);
  {
    Progress progress("save", 10, "files", log.output());
    for (int i = 0; i < 10; ++i) {
      log.now_s += 2.9;
      progress.add(1);
    }
  }
  EXPECT_TRUE(log.lines.empty());
}

TEST(Progress, LogsEvery30Seconds) {
  FakeTerminal log(false);
  {
    Progress progress("save", 100, "files", log.output());
    for (int i = 0; i < 100; ++i) {
      log.now_s += 1;
      progress.add(1);
    }
  }
  EXPECT_EQ(log.lines.size(), 3u) << "after 30, 60 and 90 s; no empty line at the end";
}

TEST(Progress, ALiveLineIsNotDrawnForEachBlockAndIsRemovedAtTheEnd) {
  FakeTerminal terminal(true);
  {
    Progress progress("merge", 1000, "parameters", terminal.output());
    for (int i = 0; i < 1000; ++i) {
      terminal.now_s += 0.001;
      progress.add(1);
    }
    EXPECT_LE(terminal.lines.size(), 5u);
    EXPECT_GE(terminal.lines.size(), 4u);
  }
  EXPECT_EQ(terminal.lines.back(), "");
}

TEST(Progress, ANoteEndsTheLine) {
  FakeTerminal terminal(true);
  Progress progress("plan", 4, "layouts", terminal.output());
  int asked = 0;
  progress.set_note([&] {
    ++asked;
    return "best 1.5 s";
  });
  progress.add(1);
  EXPECT_EQ(asked, 0) << "no line was due";
  terminal.now_s += 1;
  progress.add(1);
  ASSERT_EQ(terminal.lines.size(), 1u);
  EXPECT_TRUE(terminal.lines[0].ends_with("  best 1.5 s")) << terminal.lines[0];
}

TEST(Progress, AddsUpTheWorkOfThreads) {
  FakeTerminal log(false);
  Progress progress("verify", 4000, "pages", log.output());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) progress.add(1);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(progress.done(), 4000);
  log.now_s += 40;
  progress.add(0);
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_TRUE(log.lines[0].starts_with("verify  100 %  4")) << log.lines[0];
}

TEST(Progress, ACallbackSetsDoneAndTotal) {
  FakeTerminal terminal(true);
  Progress progress("load", 0, "tensors", terminal.output());
  const ProgressCall call = progress.callback();
  terminal.now_s += 1;
  call(3, 12);
  ASSERT_EQ(terminal.lines.size(), 1u);
  EXPECT_EQ(terminal.lines[0], "load  25 %  3 of 12 tensors  3 tensors/s  ETA 3 s");
}

}  // namespace
}  // namespace kintsugi
