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

// Pieces of a packed row: the first token of each is not predicted. -1 stands for "not trained".
TEST_F(SampleReaderTest, PackedExamplesTrainTheTokensOfTheirMasks) {
  struct Case {
    Row labels;
    std::vector<std::int32_t> lengths;
    Row targets;
  };
  const std::vector<Case> cases = {
      {{54, -1, -1, 76, -1, -1, 30}, {4, 3}, {-1, -1, 76, -1, -1, 30, -1}},
      {{-1, 35, -1, 10, 58, -1, 82}, {2, 2, 3}, {35, -1, 10, -1, -1, 82, -1}},
      {{-1, -1, 37, -1, 59}, {5}, {-1, 37, -1, 59, -1}},
  };
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const Case& example = cases[c];
    std::vector<Row> documents;
    std::string mask;
    std::vector<TokenRange> ranges;
    for (const std::int32_t length : example.lengths) {
      Row& document = documents.emplace_back();
      for (std::int32_t i = 0; i < length; ++i) {
        const std::int32_t label = example.labels[mask.size()];
        document.push_back(label < 0 ? 99 : label);
        mask += static_cast<char>(label >= 0);
      }
    }
    const TokenShard shard =
        TokenShard::open(write_store(directory_, "p" + std::to_string(c), documents, mask));
    for (std::int64_t d = 0; d < shard.documents(); ++d)
      ranges.push_back(
          {&shard, shard.document_begin(d), shard.document_begin(d + 1) - shard.document_begin(d)});
    const auto length = static_cast<std::int64_t>(example.labels.size());
    EXPECT_EQ(read(ranges, {.length = length,
                            .vocab_size = 100,
                            .document_mask = true,
                            .boundary_loss = false,
                            .packed = true})
                  .targets,
              example.targets);
  }
}

// The loss of a batch is a sum over all its targets, divided by their number: not a mean of means.
// logprobs[t] is the log-probability of token t + 1.
TEST_F(SampleReaderTest, TheLossIsDividedByTheTargetsOfAllRows) {
  struct Example {
    Row ids;
    std::string mask;
    std::vector<double> logprobs;
  };
  const std::vector<Example> rows = {
      {{33, 61, 72, 76, 42, 76, 86, 26, 71},
       std::string(9, '\1'),
       {-2.5759, -4.537, -1.29, -3.3598, -4.7744, -4.3516, -3.0511, -1.5292, -0.7143}},
      {{74, 72, 39, 78, 68, 30, 57, 73, 19},
       std::string(7, '\0') + std::string(2, '\1'),
       {-2.5208, -3.0301, -0.1485, -4.8473, -2.5849, -2.0089, -4.0073, -2.8187, -2.4603}}};
  std::vector<double> sums, counts;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const TokenShard shard = TokenShard::open(
        write_store(directory_, "loss" + std::to_string(r), {rows[r].ids}, rows[r].mask));
    const SampleBatch batch = read({{&shard, 0, 9}}, {.length = 12,
                                                      .vocab_size = 100,
                                                      .document_mask = true,
                                                      .boundary_loss = false,
                                                      .packed = true});
    double sum = 0, count = 0;
    for (std::size_t i = 0; i < batch.targets.size(); ++i)
      if (batch.targets[i] >= 0) {
        sum -= rows[r].logprobs.at(i);
        count += 1;
      }
    sums.push_back(sum);
    counts.push_back(count);
  }
  EXPECT_EQ(counts, (std::vector<double>{8, 2}));
  EXPECT_NEAR(sums[0], 25.469, 1e-9);
  EXPECT_NEAR(sums[1], 6.826, 1e-9);
  EXPECT_NEAR((sums[0] + sums[1]) / (counts[0] + counts[1]), 3.2295, 1e-9);
}

TEST_F(SampleReaderTest, ALabelIsTheTargetOfTheLastTokenOfItsDocument) {
  const std::string prefix = write_store(directory_, "l", counting_documents({3, 0, 2, 4}));
  std::string labels;
  for (const std::uint64_t label : {2, 9, 0, 1}) put_little_endian(labels, label, 4);
  directory_.write("l.labels", labels);
  const TokenShard shard = TokenShard::open(prefix);
  SampleOptions options{.kind = SampleKind::Labels,
                        .length = 8,
                        .vocab_size = 15,
                        .classes = 3,
                        .document_mask = true,
                        .packed = true};
  const SampleBatch batch = read({{&shard, 3, 2}, {&shard, 0, 3}}, options);
  EXPECT_EQ(batch.ids, (Row{3, 4, 0, 1, 2, 0, 0, 0}));
  EXPECT_EQ(batch.targets, (Row{-1, 0, -1, -1, 2, -1, -1, -1}));
  EXPECT_EQ(batch.positions, (Row{0, 1, 0, 1, 2, 0, 1, 2}));
  // A full row, and a range over several documents, of which one is empty and one is cut.
  options.length = 4;
  EXPECT_EQ(read({{&shard, 5, 4}}, options).targets, (Row{-1, -1, -1, 1}));
  options.packed = false;
  EXPECT_EQ(read({{&shard, 2, 5}}, options).targets, (Row{2, -1, 0, -1}));
  options.classes = 1;
  EXPECT_THAT(user_error_of([&] {
                read({{&shard, 5, 5 - 1}, {&shard, 0, 1}}, options);
              }),
              AllOf(HasSubstr("/l.labels: document 3 has label 1"), HasSubstr("1 classes")));
}

class SamplePairsTest : public testing::Test {
 protected:
  // Sequences 0 1 2 | 3 4, 5 6 | 7 8 9 | 10 11, 12 13 14: the third document is no pair.
  SamplePairsTest() {
    const auto sequences = counting_documents({3, 2, 2, 3, 2, 3});
    write_megatron((directory_ / "p").string(), TokenType::U16, sequences, {0, 2, 4, 5, 6});
    directory_.write("p.mask", std::string("\0\1\1\0\1\0\1\1\0\1\1\1\1\1\1", 15));
    shard_ = std::make_unique<TokenShard>(TokenShard::open(directory_ / "p"));
  }
  TemporaryDirectory directory_;
  std::unique_ptr<TokenShard> shard_;
  SampleOptions options_{.kind = SampleKind::Pairs,
                         .length = 11,
                         .vocab_size = 15,
                         .document_mask = true,
                         .packed = true};
};

TEST_F(SamplePairsTest, EachSequenceOfAPairHasItsOwnPositions) {
  SampleBatch batch(2, options_);
  SampleReader reader(options_);
  reader.read({{shard_.get(), 5, 5}, {shard_.get(), 0, 5}}, batch, 0);
  reader.read({{shard_.get(), 0, 5}}, batch, 1);
  EXPECT_EQ(Row(batch.ids.begin(), batch.ids.begin() + 11), (Row{5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(Row(batch.targets.begin(), batch.targets.begin() + 11),
            (Row{6, -1, -1, 9, -1, 1, 2, -1, 4, -1, -1}));
  EXPECT_EQ(Row(batch.positions.begin(), batch.positions.begin() + 11),
            (Row{0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(Row(batch.document_start.begin(), batch.document_start.begin() + 11),
            (Row{0, 0, 2, 2, 2, 5, 5, 5, 8, 8, 10}));
  const auto listed = [&] {
    std::vector<Row> all;
    for (const SampleSequence& s : batch.sequences) {
      EXPECT_EQ(s.shard, shard_.get());
      all.push_back({static_cast<std::int32_t>(s.row), static_cast<std::int32_t>(s.begin),
                     static_cast<std::int32_t>(s.end), static_cast<std::int32_t>(s.sequence)});
    }
    return all;
  };
  EXPECT_EQ(
      listed(),
      (std::vector<Row>{
          {0, 0, 2, 2}, {0, 2, 5, 3}, {0, 5, 8, 0}, {0, 8, 10, 1}, {1, 0, 3, 0}, {1, 3, 5, 1}}));
  reader.read({{shard_.get(), 0, 5}}, batch, 0);
  EXPECT_EQ(listed(), (std::vector<Row>{{0, 0, 3, 0}, {0, 3, 5, 1}}));
}

TEST_F(SamplePairsTest, ADocumentThatIsNoPairIsNamed) {
  SampleBatch batch(1, options_);
  SampleReader reader(options_);
  EXPECT_THAT(user_error_of([&] {
                reader.read({{shard_.get(), 10, 2}}, batch, 0);
              }),
              HasSubstr("/p: document 2 is not a preference pair"));
  EXPECT_THAT(user_error_of([&] {
                reader.read({{shard_.get(), 0, 4}}, batch, 0);
              }),
              HasSubstr("document 0 is not a preference pair"));
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
