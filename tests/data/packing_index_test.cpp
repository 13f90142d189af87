#include "data/sampling/packing_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "core/error.h"
#include "data/sampling/sample_order.h"
#include "data/sampling/sample_reader.h"
#include "model/model_test_util.h"
#include "support/counting_store.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class PackingIndexTest : public testing::Test {
 protected:
  PackingIndex packed(const TokenStream& stream, std::int64_t length,
                      std::int64_t block = kPackedBlock) {
    PackingIndex::build(path_, stream, length, block);
    return PackingIndex::open(path_, stream, length, true, block).value();
  }
  std::vector<TokenShard> shards_of(const std::vector<std::vector<std::int32_t>>& lengths) {
    std::vector<TokenShard> shards;
    std::int32_t first = 0;
    for (const auto& one : lengths) {
      shards.push_back(counting_shard(directory_, fmt::format("s{}", names_++), one, first));
      first += static_cast<std::int32_t>(shards.back().tokens());
    }
    return shards;
  }
  // The ranges of each sample.
  static std::vector<std::vector<TokenRange>> samples_of(const PackingIndex& index,
                                                         const TokenStream& stream) {
    std::vector<std::vector<TokenRange>> samples;
    for (std::int64_t i = 0; i < index.summary().samples; ++i)
      index.locate(i, stream, samples.emplace_back());
    return samples;
  }
  // What is wrong with the file: an error message, or "stale" if open() does not accept it.
  std::string problem(const TokenStream& stream, std::int64_t length, bool verify = true) {
    try {
      const auto index = PackingIndex::open(path_, stream, length, verify);
      if (!index) return "stale";
      samples_of(*index, stream);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  void damage(std::size_t at) {
    std::string bytes = content_of(path_);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 0x40);
    std::ofstream(path_, std::ios::binary) << bytes;
  }

  TemporaryDirectory directory_;
  fs::path path_ = directory_ / "packing/a.index";
  int names_ = 0;
};

// Token i of the stream has id i.
TEST_F(PackingIndexTest, EveryTokenIsReadOnceAndPredictedOnce) {
  std::mt19937 random(3);
  for (const std::int64_t length : {1, 2, 16, 50})
    for (const std::int64_t block : {std::int64_t{3}, std::int64_t{40}, kPackedBlock}) {
      std::vector<std::vector<std::int32_t>> lengths(3);
      for (auto& shard : lengths)
        for (int i = 0; i < 60; ++i)
          shard.push_back(static_cast<std::int32_t>(random() % (i % 9 == 0 ? 170 : 30)));
      const auto shards = shards_of(lengths);
      const TokenStream stream = hold_out(shards, 0.1).train;
      const PackingIndex index = packed(stream, length, block);
      const SampleOptions options{
          .length = length, .vocab_size = 1 << 20, .boundary_loss = false, .packed = true};
      SampleReader reader(options);
      SampleBatch batch(1, options);
      std::multiset<std::int32_t> inputs, targets;
      std::int64_t padding = 0;
      for (const auto& ranges : samples_of(index, stream)) {
        reader.read(ranges, batch.row(0));
        std::int64_t tokens = 0;
        for (const TokenRange& range : ranges) tokens += range.count;
        padding += std::max<std::int64_t>(length - tokens, 0);
        for (std::int64_t i = 0; i < length; ++i) {
          const auto at = static_cast<std::size_t>(i);
          if (i < tokens) inputs.insert(batch.ids[at]);
          if (batch.targets[at] < 0) continue;
          EXPECT_LT(i, tokens) << "padding has no loss";
          EXPECT_EQ(batch.targets[at], batch.ids[at] + 1) << "the next token of the document";
          targets.insert(batch.targets[at]);
        }
      }
      std::multiset<std::int32_t> all, predicted;
      std::int64_t whole = 0, cut = 0;
      for (const TokenRange& part : stream.parts())
        for (std::int64_t d = 0; d < part.shard->documents(); ++d) {
          const std::int64_t begin = part.shard->document_begin(d),
                             end = part.shard->document_begin(d + 1);
          if (begin >= part.count || begin == end) continue;
          ++(end - begin > length ? cut : whole);
          for (std::int64_t t = begin; t < end; ++t) {
            std::vector<std::int32_t> id(1);
            part.shard->read(t, id);
            all.insert(id[0]);
            if (t > begin) predicted.insert(id[0]);
          }
        }
      EXPECT_EQ(inputs, all);
      EXPECT_EQ(targets, predicted);
      EXPECT_EQ(index.summary().whole, whole);
      EXPECT_EQ(index.summary().cut, cut);
      EXPECT_EQ(index.summary().tokens, stream.tokens());
      EXPECT_EQ(index.summary().samples * length, stream.tokens() + padding);
      EXPECT_NEAR(
          index.summary().padding(length),
          static_cast<double>(padding) / static_cast<double>(index.summary().samples * length),
          1e-12);
    }
}

TEST_F(PackingIndexTest, NoDocumentThatFitsIsCut) {
  const auto shards = shards_of({{5, 16, 15, 0, 17, 1, 1, 33, 16, 9}});
  const TokenStream stream = hold_out(shards, 0.0).train;
  const PackingIndex index = packed(stream, 16);
  std::map<std::int64_t, std::vector<std::int64_t>> pieces;  // of each document: their tokens
  for (const auto& ranges : samples_of(index, stream))
    for (const TokenRange& range : ranges)
      pieces[shards[0].document_of(range.first)].push_back(range.count);
  for (auto& [document, counts] : pieces) std::sort(counts.begin(), counts.end());
  using Counts = std::vector<std::int64_t>;
  // A piece after which the document continues has one token more, as a target.
  EXPECT_EQ(pieces, (std::map<std::int64_t, Counts>{{0, {5}},
                                                    {1, {16}},
                                                    {2, {15}},
                                                    {4, {1, 17}},
                                                    {5, {1}},
                                                    {6, {1}},
                                                    {7, {1, 17, 17}},
                                                    {8, {16}},
                                                    {9, {9}}}));
  // Two documents of 16 tokens, three full pieces, 15 + 1, and 9 + 5 + 1 + 1; the last 1 is alone.
  EXPECT_EQ(index.summary().samples, 8);
  EXPECT_EQ(index.summary().cut, 2);
  EXPECT_EQ(index.summary().whole, 7);
}

// The tokens of a text file are one document.
TEST_F(PackingIndexTest, ALongDocumentIsWindows) {
  std::vector<TokenShard> shards;
  shards.push_back(TokenShard::open_text(directory_.write("a.txt", std::string(1000, 'x'))));
  const TokenStream stream = hold_out(shards, 0.05).train;  // 950 tokens
  const PackingIndex index = packed(stream, 100, 4);
  EXPECT_EQ(index.summary().samples, 10);
  EXPECT_EQ(index.summary().cut, 1);
  EXPECT_NEAR(index.summary().padding(100), 0.05, 1e-12);
  std::vector<std::int64_t> counts;
  for (const auto& ranges : samples_of(index, stream)) {
    ASSERT_EQ(ranges.size(), 1u);
    counts.push_back(ranges[0].count);
  }
  std::sort(counts.begin(), counts.end());
  EXPECT_EQ(counts, (std::vector<std::int64_t>{50, 101, 101, 101, 101, 101, 101, 101, 101, 101}))
      << "held-out tokens are no targets";
}

TEST_F(PackingIndexTest, TheFileIsTheSameEachTimeAndTheOrderCoversEachEpoch) {
  std::mt19937 random(5);
  std::vector<std::int32_t> lengths(300);
  for (std::int32_t& length : lengths) length = static_cast<std::int32_t>(1 + random() % 40);
  const auto shards = shards_of({lengths});
  const TokenStream stream = hold_out(shards, 0.0).train;
  packed(stream, 24, 32);
  const std::string bytes = content_of(path_);
  const PackingIndex index = packed(stream, 24, 32);
  EXPECT_EQ(content_of(path_), bytes) << "however the threads were scheduled";
  const std::int64_t samples = index.summary().samples;
  const auto order_of = [&] {
    std::vector<std::unique_ptr<SourceSamples>> sources;
    sources.push_back(std::make_unique<PackedSamples>(
        stream, PackingIndex::open(path_, stream, 24, false, 32).value()));
    return std::make_unique<ShuffledOrder>(std::move(sources), std::vector<std::uint64_t>{1}, 24,
                                           9);
  };
  const auto order = order_of();
  std::vector<std::vector<std::int32_t>> epochs[2];
  for (std::int64_t k = 0; k < 2 * samples; ++k) {
    std::vector<TokenRange> ranges, again;
    EXPECT_EQ(order->locate(k, ranges).epoch, k / samples);
    order_of()->locate(k, again);
    EXPECT_EQ(ranges, again);
    epochs[k / samples].push_back(tokens_of(ranges));
  }
  EXPECT_NE(epochs[0], epochs[1]) << "another order";
  for (auto& epoch : epochs) std::sort(epoch.begin(), epoch.end());
  EXPECT_EQ(epochs[0], epochs[1]);
  EXPECT_EQ(std::adjacent_find(epochs[0].begin(), epochs[0].end()), epochs[0].end());
}

// The first token and the tokens of each piece, as TRL's bfd_split places them.
TEST_F(PackingIndexTest, LongDocumentsAreSplitAndPackedAsByTrl) {
  using Pieces = std::vector<std::pair<std::int64_t, std::int64_t>>;
  struct Case {
    std::int64_t length;
    std::vector<std::int32_t> documents;
    std::vector<Pieces> rows;
  };
  const std::vector<Case> cases = {
      {4, {5, 2, 3, 1}, {{{0, 4}}, {{7, 3}, {4, 1}}, {{5, 2}, {10, 1}}}},
      {4, {5, 2, 4, 1}, {{{0, 4}}, {{7, 4}}, {{5, 2}, {4, 1}, {11, 1}}}},
      {4, {2, 0, 3, 0, 1}, {{{2, 3}, {5, 1}}, {{0, 2}}}},
      {8,
       {12, 1, 6, 4, 5, 2, 5, 2, 6, 5},
       {{{0, 8}},
        {{13, 6}, {28, 2}},
        {{37, 6}, {35, 2}},
        {{23, 5}, {12, 1}},
        {{30, 5}},
        {{43, 5}},
        {{8, 4}, {19, 4}}}},
      {16,
       {4, 21, 9, 27, 13, 19, 8, 28, 15, 35, 5, 6, 10, 8},
       {{{4, 16}},
        {{34, 16}},
        {{74, 16}},
        {{101, 16}},
        {{144, 16}},
        {{160, 16}},
        {{129, 15}},
        {{61, 13}, {90, 3}},
        {{117, 12}, {0, 4}},
        {{50, 11}, {20, 5}},
        {{190, 10}, {184, 6}},
        {{25, 9}, {179, 5}},
        {{93, 8}, {200, 8}},
        {{176, 3}}}},
  };
  for (const Case& one : cases) {
    const auto shards = shards_of({one.documents});
    const TokenStream stream = hold_out(shards, 0.0).train;
    std::vector<Pieces> rows;
    for (const auto& ranges : samples_of(packed(stream, one.length), stream)) {
      Pieces& row = rows.emplace_back();
      for (const TokenRange& range : ranges)  // the last token may be only a target
        row.emplace_back(range.first, std::min(range.count, one.length));
    }
    EXPECT_EQ(rows, one.rows);
  }
}

TEST_F(PackingIndexTest, DocumentsMayHaveSamplesOfTheirOwn) {
  const auto shards = shards_of({{3, 0, 5, 1}});
  const TokenStream stream = hold_out(shards, 0.0).train;
  const PackingIndex index = PackingIndex::in_memory(stream, 4, PackingRule::Single);
  const auto samples = samples_of(index, stream);
  using Ranges = std::vector<TokenRange>;
  EXPECT_EQ(
      samples,
      (std::vector<Ranges>{
          {{&shards[0], 0, 3}}, {{&shards[0], 3, 5}}, {{&shards[0], 7, 1}}, {{&shards[0], 8, 1}}}));
  EXPECT_NE(PackingIndex::fingerprint(stream, 4),
            PackingIndex::fingerprint(stream, 4, kPackedBlock, PackingRule::Single));
}

TEST_F(PackingIndexTest, TheFingerprintTellsDataLengthAndPackingApart) {
  const auto shards = shards_of({{5, 9, 3}, {5, 9, 4}});
  const auto stream = [&](std::size_t i) {
    return TokenStream({{&shards[i], 0, shards[i].tokens()}});
  };
  const TokenStream a = stream(0), b = stream(1);
  const std::uint64_t one = PackingIndex::fingerprint(a, 8);
  EXPECT_NE(one, PackingIndex::fingerprint(b, 8));
  EXPECT_NE(one, PackingIndex::fingerprint(a, 9));
  EXPECT_NE(one, PackingIndex::fingerprint(a, 8, 100));
  packed(a, 8);
  EXPECT_EQ(problem(a, 8), "");
  EXPECT_EQ(problem(b, 8), "stale");
  EXPECT_EQ(problem(a, 9), "stale");
}

TEST_F(PackingIndexTest, ADamagedFileIsNoticed) {
  const auto shards = shards_of({{5, 9, 3, 20, 7, 7}});
  const TokenStream stream = hold_out(shards, 0.0).train;
  EXPECT_EQ(problem(stream, 8), "stale") << "there is none";
  packed(stream, 8);
  const std::string bytes = content_of(path_);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::ofstream(path_, std::ios::binary) << bytes;
    damage(at);
    EXPECT_EQ(problem(stream, 8), "stale") << at;
    // Without reading everything, some damage is found late or not at all, but never crashes.
    const std::string late = problem(stream, 8, false);
    if (late.empty() || late == "stale") continue;
    EXPECT_THAT(late, AllOf(HasSubstr("a.index"), HasSubstr("delete the file")));
  }
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    std::ofstream(path_, std::ios::binary) << bytes.substr(0, size);
    EXPECT_EQ(problem(stream, 8), "stale") << size;
  }
}

TEST_F(PackingIndexTest, DamagedDocumentsAreRefusedAndNothingIsLeft) {
  write_store(directory_, "bad", {{1, 2, 3}, {4, 5}, {6, 7, 8, 9}});
  std::string idx = content_of(directory_ / "bad.idx");
  idx[34 + 12 + 8] = 16;  // the second document starts at token 8, after the third
  std::ofstream(directory_ / "bad.idx", std::ios::binary) << idx;
  const auto shards = one_shard(TokenShard::open(directory_ / "bad"));
  const TokenStream stream = hold_out(shards, 0.0).train;
  EXPECT_THAT(user_error_of([&] { PackingIndex::build(path_, stream, 4); }),
              AllOf(HasSubstr("bad.idx"), HasSubstr("damaged")));
  EXPECT_TRUE(fs::is_empty(path_.parent_path()));
}

}  // namespace
}  // namespace kintsugi
