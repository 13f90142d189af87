#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "report/profile/profile_file.h"
#include "support/trace_events.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::ElementsAre;

TraceSpan span(SpanKind kind, const char* lane, const char* name, double begin, double end) {
  return {.kind = kind, .lane = lane, .name = name, .begin_s = begin, .end_s = end};
}

TEST(ChromeTrace, SpansBecomeEventsInMicroseconds) {
  RankTrace rank{1, "tp 0 cp 0 dp 1 pp 0", {}};
  rank.spans.push_back(span(SpanKind::Host, "host", "step 3", 1000.5, 1000.6));
  rank.spans.push_back(
      span(SpanKind::Operation, "compute", "odd \"name\"\n\x01 ü", 1000.51, 1000.52));
  TraceSpan call = span(SpanKind::Communication, "shard", "all_gather", 1000.511, 1000.5113);
  call.bytes = 4096;
  call.call = "shard#1.0 7";
  rank.spans.push_back(call);
  const json file = json::parse(chrome_trace({.ranks = {rank}}, step_exposures({rank})));
  const TraceEvents events(file);
  events.expect_nested();
  EXPECT_EQ(events.processes.at(1), "rank 1: tp 0 cp 0 dp 1 pp 0");
  EXPECT_THAT(events.lanes_of(1), ElementsAre("compute", "host", "shard"));
  EXPECT_THAT(events.names(1, "compute"), ElementsAre("odd \"name\"\n\x01 ü"));
  const auto& gather = events.lanes.at({1, "shard"}).at(0);
  EXPECT_NEAR(gather.begin, 11000, 1e-3);
  EXPECT_NEAR(gather.end - gather.begin, 300, 1e-3);
  EXPECT_EQ(gather.category, "communication");
  EXPECT_EQ(gather.arguments.at("bytes"), 4096);
  const json& exposure = file.at("otherData").at("exposure").at(0);
  EXPECT_EQ(exposure.at("rank"), 1);
  EXPECT_EQ(exposure.at("step"), 3);
  EXPECT_NEAR(exposure.at("groups").at("shard").at("communication_s").get<double>(), 3e-4, 1e-9);
  EXPECT_NEAR(exposure.at("exposed_s").get<double>(), 0, 1e-9);
}

TEST(ChromeTrace, OverlappingMessagesGetRowsOfTheirOwn) {
  RankTrace rank{0, "", {}};
  for (const auto& [begin, end] : {std::pair{0.0, 2.0}, {1.0, 3.0}, {2.0, 4.0}, {3.0, 3.5}})
    rank.spans.push_back(span(SpanKind::Communication, "pp < 0", "receive", begin, end));
  const TraceEvents events(json::parse(chrome_trace({.ranks = {rank}}, {})));
  events.expect_nested();
  EXPECT_THAT(events.lanes_of(0), ElementsAre("pp < 0", "pp < 0 (2)"));
  EXPECT_EQ(events.names(0, "pp < 0").size(), 2u);
}

TEST(ChromeTrace, AnySpansMakeAFileThatViewersRead) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> moment(0, 1e-3);
  for (int round = 0; round < 20; ++round) {
    std::vector<RankTrace> ranks(3);
    for (int i = 0; i < 300; ++i) {
      double begin = moment(random), end = moment(random);
      if (end < begin) std::swap(begin, end);
      const auto kind = static_cast<SpanKind>(random() % 9);
      const auto lane = std::string(to_string(kind));
      ranks[random() % 3].spans.push_back(span(kind, lane.c_str(), "x", 1e6 + begin, 1e6 + end));
    }
    for (int i = 0; i < 3; ++i) ranks[static_cast<std::size_t>(i)].rank = i;
    const TraceEvents events(json::parse(chrome_trace({.ranks = ranks}, step_exposures(ranks))));
    events.expect_nested();
    std::size_t count = 0;
    for (const auto& [lane, list] : events.lanes) count += list.size();
    EXPECT_EQ(count, 300u);
  }
}

TEST(ChromeTrace, NothingIsAValidFile) {
  const TraceEvents events(json::parse(chrome_trace({.ranks = {{0, "alone", {}}}}, {})));
  EXPECT_TRUE(events.lanes.empty());
}

TEST(ChromeTrace, ARankTraceIsSerializedAsText) {
  RankTrace rank{5, "tp 1", {span(SpanKind::Phase, "pipeline", "forward 0", 0.1, 1.0 / 3)}};
  TraceSpan& span = rank.spans[0];
  span.bytes = 7;
  span.call = "c";
  span.operation = 3;
  span.work = WorkKind::Attention;
  span.flops = 1e15;
  span.dtype = "bf16";
  span.phase = "forward 1";
  span.layer = "layer 2";
  span.blocks = 5;
  const RankTrace back = rank_trace_from(to_text(rank));
  EXPECT_EQ(back.rank, 5);
  EXPECT_EQ(back.coordinates, "tp 1");
  ASSERT_EQ(back.spans.size(), 1u);
  const TraceSpan &a = rank.spans[0], &b = back.spans[0];
  EXPECT_EQ(std::tie(a.kind, a.lane, a.name, a.begin_s, a.end_s, a.bytes, a.call),
            std::tie(b.kind, b.lane, b.name, b.begin_s, b.end_s, b.bytes, b.call));
  EXPECT_EQ(std::tie(a.operation, a.work, a.flops, a.dtype, a.phase, a.layer, a.blocks),
            std::tie(b.operation, b.work, b.flops, b.dtype, b.phase, b.layer, b.blocks));
}

}  // namespace
}  // namespace kintsugi
