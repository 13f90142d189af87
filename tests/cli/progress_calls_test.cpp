// What long work reports of itself: totals that are known beforehand, and an end at the total.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/progress.h"
#include "data/stores/store_check.h"
#include "data/stores/store_output.h"
#include "data/stores/token_store.h"
#include "model/files/compare.h"
#include "plan/search/search.h"
#include "support/counting_store.h"
#include "support/parallel_run.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

TrainerState state_after_one_step() {
  TrainerState state;
  state.step = 1;
  return state;
}

struct ProgressCalls {
  ProgressCall callback() {
    return [this](std::int64_t done, std::int64_t total) {
      EXPECT_GE(done, last) << "goes back";
      EXPECT_LE(done, total);
      EXPECT_TRUE(calls == 0 || total == all) << "another total";
      last = done;
      all = total;
      ++calls;
    };
  }
  std::int64_t last = 0, all = 0, calls = 0;
};

TEST(ProgressCalls, OfMergedStoresAreTokens) {
  const TemporaryDirectory directory;
  const auto path = [&](const char* name) { return (directory / name).string(); };
  write_megatron(path("a"), TokenType::U16, {{1, 2, 3}, {4}}, {0, 1, 2});
  write_megatron(path("b"), TokenType::U16, {{5}, {6, 7}, {8}}, {0, 1, 2, 3});
  ProgressCalls calls;
  merge_stores({path("a"), path("b")}, path("out"), false, calls.callback());
  EXPECT_EQ(calls.all, 8);
  EXPECT_EQ(calls.last, 8);
  EXPECT_EQ(calls.calls, 5) << "one for each document";
}

TEST(ProgressCalls, OfACheckedStoreAddUpToItsBytes) {
  const TemporaryDirectory directory;
  const std::string prefix = (directory / "a").string();
  write_megatron(prefix, TokenType::U16, {{1, 2, 3}, {4}}, {0, 1, 2});
  const auto shards = open_token_store(prefix);
  StoreInfo info;
  info.shards.emplace_back().name = "a";
  std::int64_t ids = 0, everything = 0;
  EXPECT_TRUE(check_shard(shards[0], 10, nullptr, [&](std::int64_t n) { ids += n; }).empty());
  EXPECT_EQ(ids, 4 * 2) << "4 tokens of 2 bytes";
  EXPECT_EQ(bytes_to_check(shards[0], true, nullptr), 8);
  EXPECT_EQ(bytes_to_check(shards[0], false, nullptr), 0);
  // Its checksums are wrong, but all files are read.
  EXPECT_EQ(check_shard(shards[0], 10, &info, [&](std::int64_t n) { everything += n; }).size(), 2u);
  EXPECT_EQ(everything, static_cast<std::int64_t>(8 + std::filesystem::file_size(prefix + ".bin") +
                                                  std::filesystem::file_size(prefix + ".idx")));
  EXPECT_EQ(bytes_to_check(shards[0], true, &info), everything);
}

TEST(ProgressCalls, OfAPlanAreItsLayouts) {
  const PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 16};
  Planner planner(job, load_machine("dgx-h100"));
  ProgressCalls calls;
  const SearchResult result =
      search_layouts(planner, {.gpus = 4, .schedule = "1f1b"}, calls.callback());
  EXPECT_GT(result.layouts, 10);
  EXPECT_EQ(calls.all, result.layouts);
  EXPECT_EQ(calls.calls, result.layouts);
}

// Weights and two moments in fp32, of which a rank writes what it owns.
TEST(ProgressCalls, OfACheckpointAreTheBytesOfARank) {
  const Training training{.model = tiny_model("llama-gqa", 2), .precision = DType::F32};
  for (const int ranks : {1, 2}) {
    const TemporaryDirectory directory;
    std::int64_t written = 0, parameters = 0;
    std::mutex mutex;
    on_ranks({.dp = ranks, .zero = 1}, training, [&](const Member& member) {
      ProgressCalls calls;
      CheckpointOptions options;
      options.progress = calls.callback();
      save_checkpoint(directory.path(), member.engine, state_after_one_step(), options);
      EXPECT_EQ(calls.last, calls.all);
      const std::lock_guard lock(mutex);
      written += calls.all;
      parameters = member.engine.parameters().buffer_elements();  // with padding
    });
    EXPECT_EQ(written, 3 * 4 * parameters) << ranks;
  }
}

TEST(ProgressCalls, OfComparedModelsAreTheirElements) {
  const Training training{.model = tiny_model("gpt2", 2), .precision = DType::F32};
  const TemporaryDirectory directory;
  std::int64_t parameters = 0;
  on_ranks({}, training, [&](const Member& member) {
    save_checkpoint(directory.path(), member.engine, state_after_one_step(), {});
    for (const Parameter& one : member.engine.parameters().parameters())
      parameters += one.shape.elements();
  });
  const StoredModel model(directory / "latest");
  ProgressCalls calls;
  EXPECT_TRUE(compare_models(model, model, calls.callback()).equal());
  EXPECT_EQ(calls.last, calls.all);
  EXPECT_EQ(calls.calls, std::ssize(model.names));
  EXPECT_LE(calls.all, parameters);
  EXPECT_GT(calls.all, parameters / 2);
}

}  // namespace
}  // namespace kintsugi
