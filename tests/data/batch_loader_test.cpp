#include "data/sampling/batch_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/error.h"
#include "support/counting_store.h"

namespace kintsugi {
namespace {

class BatchLoaderTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::vector<TokenShard> shards_ =
      one_shard(counting_shard(directory_, "a", {50, 70, 3, 200, 40, 137}));
  TokenStream stream_ = hold_out(shards_, 0.0).train;
  SampleOptions options_ = {
      .length = 8, .vocab_size = 1000, .document_mask = true, .boundary_loss = false};
  ShuffledOrder order_{windows_over({&stream_}, 8), {1}, 8, 11};
};

// Samples first … end - 1 are those of the order, for any batch size and depth.
TEST_F(BatchLoaderTest, BatchesAreTheSamplesOfTheOrder) {
  SampleReader reader(options_);
  SampleBatch one(1, options_);
  for (const std::int64_t batch : {1, 3, 6})
    for (const std::int64_t depth : {1, 2, 5}) {
      const std::int64_t first = 24, end = 24 + 120;
      BatchLoader loader(order_, options_,
                         {BatchSchedule(batch, {}, {0, first}), 1, 120 / batch, 0, 1, depth});
      for (std::int64_t k = first; k < end; k += batch) {
        const SampleBatch& read = loader.next();
        for (std::int64_t i = 0; i < batch; ++i) {
          std::vector<TokenRange> ranges;
          order_.locate(k + i, ranges);
          reader.read(ranges, one.row(0));
          const auto row_of = [&](const std::vector<std::int32_t>& all) {
            return std::vector(all.begin() + i * 8, all.begin() + (i + 1) * 8);
          };
          ASSERT_EQ(row_of(read.ids), one.ids);
          ASSERT_EQ(row_of(read.targets), one.targets);
          ASSERT_EQ(row_of(read.positions), one.positions);
          ASSERT_EQ(row_of(read.document_start), one.document_start);
        }
        loader.release();
      }
    }
}

// Ranks that each read a range of every batch together read the same samples as one rank.
TEST_F(BatchLoaderTest, RanksShareEveryBatch) {
  const std::int64_t global = 12, steps = 5;
  for (const std::int64_t ranks : {2, 3, 12}) {
    BatchLoader alone(order_, options_, {BatchSchedule(global, {}, {0, 24}), 1, steps, 0, 1, 2});
    std::vector<std::unique_ptr<BatchLoader>> loaders;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      loaders.push_back(std::make_unique<BatchLoader>(
          order_, options_,
          BatchLoader::Plan{BatchSchedule(global, {}, {0, 24}), 1, steps, rank, ranks, 3}));
    for (std::int64_t step = 0; step < steps; ++step) {
      std::vector<std::int32_t> together;
      for (const auto& loader : loaders) {
        const std::vector<std::int32_t>& ids = loader->next().ids;
        together.insert(together.end(), ids.begin(), ids.end());
        loader->release();
      }
      EXPECT_EQ(together, alone.next().ids) << ranks << " ranks, step " << step;
      alone.release();
    }
  }
}

// Over a ramp of 2, 4, … 12 sequences, the ranks together read sample 0, 1, 2, … once each.
TEST_F(BatchLoaderTest, RampsReadEverySampleOnce) {
  SampleReader reader(options_);
  SampleBatch one(1, options_);
  for (const std::int64_t ranks : {1, 2}) {
    std::vector<std::unique_ptr<BatchLoader>> loaders;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      loaders.push_back(std::make_unique<BatchLoader>(
          order_, options_,
          BatchLoader::Plan{BatchSchedule(12, {2, 2, 40}), 1, 12, rank, ranks, 3}));
    std::vector<std::size_t> batches;
    std::int64_t sample = 0;
    for (int step = 0; step < 12; ++step) {
      batches.push_back(0);
      for (const auto& loader : loaders) {
        const SampleBatch& read = loader->next();
        for (std::size_t at = 0; at < read.ids.size(); at += 8, ++sample) {
          std::vector<TokenRange> ranges;
          order_.locate(sample, ranges);
          reader.read(ranges, one.row(0));
          EXPECT_TRUE(std::equal(one.ids.begin(), one.ids.end(), read.ids.begin() + at)) << sample;
          EXPECT_TRUE(
              std::equal(one.positions.begin(), one.positions.end(), read.positions.begin() + at));
        }
        EXPECT_EQ(read.targets.size(), read.ids.size());
        EXPECT_EQ(read.document_start.size(), read.ids.size());
        batches.back() += read.ids.size() / 8;
        loader->release();
      }
    }
    // Increments at samples 8, 16, 24, 32 and 40.
    EXPECT_THAT(batches, testing::ElementsAre(2, 2, 2, 2, 4, 4, 6, 6, 8, 10, 12, 12));
  }
}

TEST_F(BatchLoaderTest, StopsAtAnyTime) {
  for (int taken = 0; taken < 4; ++taken) {
    BatchLoader loader(order_, options_, {BatchSchedule(2), 1, 500'000, 0, 1, 3});
    for (int i = 0; i < taken; ++i) {
      loader.next();
      if (i + 1 < taken) loader.release();
    }
  }
  BatchLoader none(order_, options_, {BatchSchedule(2), 1, 0, 0, 1, 3});
}

// Batches before the bad id are returned; from there on, every next() throws the error.
TEST_F(BatchLoaderTest, AnErrorReachesTheCallerWithItsBatch) {
  SampleOptions small = options_;
  std::int64_t bad = 0;
  for (const std::int64_t limit : {499, 450}) {
    small.vocab_size = limit;
    for (bad = 0;; ++bad) {
      std::vector<TokenRange> ranges;
      order_.locate(bad, ranges);
      if (tokens_of(ranges).back() >= limit) break;
    }
    BatchLoader loader(order_, small, {BatchSchedule(1), 1, 1000, 0, 1, 2});
    for (std::int64_t i = 0; i < bad; ++i) {
      EXPECT_NO_THROW(loader.next());
      loader.release();
    }
    EXPECT_THROW(loader.next(), UserError);
    EXPECT_THROW(loader.next(), UserError);
  }
}

}  // namespace
}  // namespace kintsugi
