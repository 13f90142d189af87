#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/socket.h"
#include "support/captured_log.h"
#include "support/rank_trainers.h"
#include "support/small_run.h"
#include "train/trainer/rank_checks.h"

namespace kintsugi {
namespace {

TEST(Stragglers, TheSlowestRankIsComparedWithTheMedian) {
  const Straggler slowest = slowest_rank({1.0, 1.2, 0.8, 3.0, 1.0});
  EXPECT_EQ(slowest.rank, 3);
  EXPECT_DOUBLE_EQ(slowest.ratio, 3.0);
  EXPECT_DOUBLE_EQ(slowest_rank({2.0, 4.0}).ratio, 4.0 / 3);
  EXPECT_EQ(slowest_rank({0, 0, 0}).ratio, 1);
  EXPECT_EQ(slowest_rank({}).rank, 0);
}

TEST(Stragglers, AreRecordedNowAndThen) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const CapturedLog log;
  train_on_ranks(3, small_config(corpus, directory / "run",
                                 "steps: 25, eval_every: 0, save: false, log_every: 1"));
  std::ifstream metrics(directory / "run/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const auto record = nlohmann::json::parse(line);
    const bool due = record.at("step").get<int>() % 10 == 0;
    ASSERT_EQ(record.contains("straggler"), due) << line;
    if (!due) continue;
    EXPECT_GE(record["straggler"].at("ratio"), 1);
    EXPECT_LT(record["straggler"].at("rank"), 3);
    EXPECT_EQ(record["straggler"].at("node"), host_name());
  }
  const auto status = nlohmann::json::parse(std::ifstream(directory / "run/status.json"));
  EXPECT_TRUE(status.contains("straggler"));
}

}  // namespace
}  // namespace kintsugi
