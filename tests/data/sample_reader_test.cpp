#include "data/sampling/sample_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "model/model_test_util.h"
#include "support/counting_store.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Row = std::vector<std::int32_t>;

SampleBatch read(const std::vector<TokenRange>& ranges, const SampleOptions& options) {
  SampleBatch batch(1, options);
  SampleReader(options).read(ranges, batch.row(0));
  return batch;
}

class SampleReaderTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  // Documents 0 1 2 | 3 4 5 6 | 7 | 8 … 14
  TokenShard shard_ = counting_shard(directory_, "a", {3, 4, 1, 7});
};

TEST_F(SampleReaderTest, IdsAndWhatFollowsThem) {
  const SampleBatch batch = read({{&shard_, 2, 7}}, {.length = 6, .vocab_size = 15});
  EXPECT_EQ(batch.ids, (Row{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(batch.targets, (Row{3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(batch.positions.empty());
  EXPECT_TRUE(batch.document_start.empty());
}

TEST_F(SampleReaderTest, PositionsRestartWithEachDocument) {
  const SampleBatch batch =
      read({{&shard_, 1, 9}}, {.length = 8, .vocab_size = 15, .document_mask = true});
  EXPECT_EQ(batch.ids, (Row{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch.document_start, (Row{0, 0, 2, 2, 2, 2, 6, 7}));
  EXPECT_EQ(batch.positions, (Row{0, 1, 0, 1, 2, 3, 0, 0}));
  EXPECT_EQ(batch.targets, (Row{2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_F(SampleReaderTest, EachRangeStartsADocument) {
  const SampleBatch batch = read({{&shard_, 12, 3}, {&shard_, 5, 0}, {&shard_, 4, 2}},
                                 {.length = 4, .vocab_size = 15, .document_mask = true});
  EXPECT_EQ(batch.ids, (Row{12, 13, 14, 4}));
  EXPECT_EQ(batch.targets, (Row{13, 14, 4, 5}));
  EXPECT_EQ(batch.document_start, (Row{0, 0, 0, 3}));
}

// Documents 1 and 2, the rest of document 3 from its second token on, and padding.
TEST_F(SampleReaderTest, PackedDocumentsArePadded) {
  for (const bool boundary : {true, false}) {
    const SampleBatch batch =
        read({{&shard_, 3, 4}, {&shard_, 7, 1}, {&shard_, 9, 2}}, {.length = 10,
                                                                   .vocab_size = 15,
                                                                   .document_mask = true,
                                                                   .boundary_loss = boundary,
                                                                   .packed = true});
    EXPECT_EQ(batch.ids, (Row{3, 4, 5, 6, 7, 9, 10, 0, 0, 0}));
    // Token 9 is a target where its document begins, not here.
    EXPECT_EQ(batch.targets, (Row{4, 5, 6, boundary ? 7 : -1, -1, 10, -1, -1, -1, -1}));
    EXPECT_EQ(batch.document_start, (Row{0, 0, 0, 0, 4, 5, 5, 7, 7, 7}));
    EXPECT_EQ(batch.positions, (Row{0, 1, 2, 3, 0, 0, 1, 0, 1, 2}));
  }
  // A sample without padding has no target after its last token, unless the document continues.
  const SampleOptions options{.length = 4, .vocab_size = 15, .packed = true};
  EXPECT_EQ(read({{&shard_, 3, 4}}, options).targets, (Row{4, 5, 6, -1}));
  EXPECT_EQ(read({{&shard_, 8, 5}}, options).targets, (Row{9, 10, 11, 12}));
}

TEST_F(SampleReaderTest, BoundariesCarryNoLossWhenAsked) {
  const SampleBatch batch =
      read({{&shard_, 1, 9}}, {.length = 8, .vocab_size = 15, .boundary_loss = false});
  EXPECT_EQ(batch.targets, (Row{2, -1, 4, 5, 6, -1, -1, 9}));
}

TEST_F(SampleReaderTest, TheMaskOfAStoreTakesTargetsOut) {
  const std::string mask("\1\1\0\0\1\1", 6);
  const TokenShard masked =
      TokenShard::open(write_store(directory_, "m", counting_documents({2, 4}), mask));
  EXPECT_EQ(read({{&masked, 0, 6}}, {.length = 5, .vocab_size = 6}).targets,
            (Row{1, -1, -1, 4, 5}));
  // Together with a shard without a mask.
  EXPECT_EQ(
      read({{&masked, 2, 1}, {&shard_, 0, 2}, {&masked, 3, 2}}, {.length = 4, .vocab_size = 9})
          .targets,
      (Row{0, 1, -1, 4}));
}

TEST_F(SampleReaderTest, AnIdBeyondTheVocabularyIsNamedWithItsPosition) {
  EXPECT_NO_THROW(read({{&shard_, 8, 7}}, {.length = 6, .vocab_size = 15}));
  EXPECT_THAT(user_error_of([&] {
                read({{&shard_, 0, 2}, {&shard_, 10, 5}}, {.length = 6, .vocab_size = 13});
              }),
              AllOf(HasSubstr("/a has token id 13 at token 13"), HasSubstr("vocab_size is 13")));
}

// Compares with the definition, token by token.
TEST_F(SampleReaderTest, RandomDocumentsAndMasks) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::int32_t> lengths(20), document_of;
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      lengths[d] = static_cast<std::int32_t>(random() % 6);
      document_of.insert(document_of.end(), static_cast<std::size_t>(lengths[d]),
                         static_cast<std::int32_t>(d));
    }
    std::string mask;
    for (std::size_t i = 0; i < document_of.size(); ++i)
      mask += static_cast<char>(random() % 3 != 0);
    const TokenShard shard = TokenShard::open(
        write_store(directory_, "r" + std::to_string(round), counting_documents(lengths), mask));
    const std::int64_t length = 7;
    const auto first = static_cast<std::size_t>(random() % (document_of.size() - 8));
    for (const bool boundary : {false, true}) {
      const SampleBatch batch = read(
          {{&shard, static_cast<std::int64_t>(first), length + 1}},
          {.length = length, .vocab_size = 1000, .document_mask = true, .boundary_loss = boundary});
      for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) {
        const std::size_t token = first + i;
        std::size_t start = i;
        while (start > 0 && document_of[first + start - 1] == document_of[token]) --start;
        const bool counts =
            mask[token + 1] != 0 && (boundary || document_of[token + 1] == document_of[token]);
        EXPECT_EQ(batch.ids[i], static_cast<std::int32_t>(token));
        EXPECT_EQ(batch.targets[i], counts ? static_cast<std::int32_t>(token) + 1 : -1);
        EXPECT_EQ(batch.document_start[i], static_cast<std::int32_t>(start));
        EXPECT_EQ(batch.positions[i], static_cast<std::int32_t>(i - start));
      }
    }
  }
}

}  // namespace
}  // namespace kintsugi
