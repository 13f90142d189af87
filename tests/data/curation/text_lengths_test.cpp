// Lengths of documents, the bins that count them, and the examples of a report.
#include "data/curation/text_lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/curation/curation_example.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(LogHistogram, EdgesAreRootsOfPowersOfTwo) {
  EXPECT_EQ(LogHistogram::edge(0), 0);
  EXPECT_EQ(LogHistogram::edge(1), 1);
  // The least number whose square is at least 2^bin.
  for (std::size_t bin = 2; bin < LogHistogram::kBins; ++bin) {
    const auto edge = static_cast<unsigned __int128>(LogHistogram::edge(bin));
    const unsigned __int128 power = static_cast<unsigned __int128>(1) << bin;
    EXPECT_GE(edge * edge, power) << bin;
    EXPECT_LT((edge - 1) * (edge - 1), power) << bin;
  }
  for (std::size_t bin = 0; bin < LogHistogram::kBins; ++bin) {
    EXPECT_EQ(LogHistogram::bin_of(LogHistogram::edge(bin)), bin);
    if (bin > 0) {
      EXPECT_EQ(LogHistogram::bin_of(LogHistogram::edge(bin) - 1), bin - 1);
    }
  }
  EXPECT_EQ(LogHistogram::bin_of(-1), 0u);
  EXPECT_EQ(LogHistogram::bin_of(INT64_MAX), LogHistogram::kBins - 1);
}

TEST(LogHistogram, AddsBinByBinAndIsReadAgain) {
  LogHistogram a, b;
  a.add(0);
  a.add(3, 2);
  b.add(3);
  b.add(5);  // 4 and 5
  a.add(b);
  EXPECT_EQ(a.json().dump(), "[1,0,0,3,1]");
  EXPECT_EQ(LogHistogram::of_json(a.json()).counts(), a.counts());
  EXPECT_EQ(LogHistogram().json().dump(), "[]");
}

TEST(TextLength, WordsAreBetweenWhiteSpace) {
  const auto words = [](std::string_view text) { return length_of(text).words; };
  EXPECT_EQ(words(""), 0);
  EXPECT_EQ(words(" \n\t "), 0);
  EXPECT_EQ(words("a"), 1);
  EXPECT_EQ(words(" one, two\nthree\r\n\vfour "), 4);
  EXPECT_EQ(length_of("\u00e4\u00e4 b").bytes, 6);
}

CurationExample example_of(ExampleFate kind, std::string_view before, std::string_view after) {
  CurationExample example{.kind = kind};
  set_texts(example, before, after);
  return example;
}

TEST(CurationExample, ExcerptsOfAChangedTextHaveTheChange) {
  // Of characters with three bytes, 6,000 bytes before the change.
  std::string same;
  for (int i = 0; i < 2000; ++i) same += "\u20ac";
  const std::string before = same + "old" + same, after = same + "new text" + same;
  const CurationExample example = example_of(ExampleFate::Changed, before, after);
  EXPECT_GT(example.begin, 5000);
  EXPECT_EQ(example.begin % 3, 0) << "whole characters";
  EXPECT_EQ(example.bytes_before, 12003);
  EXPECT_EQ(example.bytes_after, 12008);
  const auto lead = static_cast<std::size_t>(6000 - example.begin);
  EXPECT_EQ(example.before.substr(lead, 3), "old");
  EXPECT_EQ(example.after.substr(lead, 8), "new text");
  EXPECT_LE(example.before.size(), 4000u);
  EXPECT_EQ((example.before.size() - 3) % 3, 0u);
}

TEST(CurationExample, OtherTextsBeginAtTheirBeginning) {
  const std::string text(9000, 'x');
  for (const ExampleFate kind : {ExampleFate::Removed, ExampleFate::Kept}) {
    const CurationExample example = example_of(kind, text, text);
    EXPECT_EQ(example.begin, 0);
    EXPECT_EQ(example.before.size(), 4000u);
    EXPECT_EQ(example.after, "");
  }
  EXPECT_EQ(example_of(ExampleFate::Changed, "a", "").after, "");
}

// The lowest orders of each kind and rule, however they are divided.
TEST(CurationExamples, AreTheSameInAnyOrder) {
  CurationExamples forward, backward, first, second;
  for (std::uint64_t i = 0; i < 20; ++i) {
    const auto add = [&](CurationExamples& to, std::uint64_t n) {
      CurationExample one{.order = n * 7 % 20, .kind = ExampleFate::Kept, .rule = "r"};
      one.origin = std::to_string(n);
      EXPECT_EQ(to.has_room_for(one.kind, one.rule, one.order, 3), [&] {
        CurationExamples copy = to;
        const std::string before = copy.json().dump();
        copy.add(one, 3);
        return copy.json().dump() != before;
      }());
      to.add(one, 3);
    };
    add(forward, i);
    add(backward, 19 - i);
    add(i % 2 == 0 ? first : second, i);
  }
  first.add(second, 3);
  EXPECT_EQ(forward.json(), backward.json());
  EXPECT_EQ(forward.json(), first.json());
  std::vector<std::uint64_t> orders;
  for (const auto& one : forward.lists().begin()->second) orders.push_back(one.order);
  EXPECT_THAT(orders, ElementsAre(0, 1, 2));
  EXPECT_EQ(CurationExamples::of_json(forward.json()).json(), forward.json());
  EXPECT_FALSE(CurationExamples().has_room_for(ExampleFate::Kept, "r", 0, 0)) << "examples: 0";
}

}  // namespace
}  // namespace kintsugi
