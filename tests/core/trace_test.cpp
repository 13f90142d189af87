#include "core/trace.h"

#include <gtest/gtest.h>

namespace kintsugi {
namespace {

struct Listener : Trace::Source {
  explicit Listener(Trace& trace) : trace(trace) { trace.attach(*this); }
  ~Listener() override { trace.detach(*this); }
  void trace_begins() override { heard += trace.on() ? "B" : "b"; }
  void trace_ends() override {
    heard += trace.on() ? "E" : "e";
    trace.add({.lane = "late"});
  }
  Trace& trace;
  std::string heard;
};

TEST(Trace, TakesHostSpansWhileItIsOn) {
  Trace trace;
  { const HostSpan before(&trace, "before"), none(nullptr, "none"); }
  trace.begin();
  {
    const HostSpan outer(&trace, "outer");
    const HostSpan inner(&trace, "inner");
  }
  trace.end();
  { const HostSpan after(&trace, "after"); }
  const auto spans = trace.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "inner");
  EXPECT_EQ(spans[1].name, "outer");
  EXPECT_LE(spans[1].begin_s, spans[0].begin_s);
  EXPECT_LE(spans[0].begin_s, spans[0].end_s);
  EXPECT_LE(spans[0].end_s, spans[1].end_s);
  EXPECT_TRUE(trace.take().empty());
}

// Sources are called before the first span, and add their missing spans after the last.
TEST(Trace, CallsItsSources) {
  Trace trace;
  {
    Listener listener(trace);
    trace.begin();
    EXPECT_TRUE(trace.on());
    trace.end();
    EXPECT_EQ(listener.heard, "be");
  }
  EXPECT_EQ(trace.take().size(), 1u);
  trace.begin();  // no source is attached
  trace.end();
  EXPECT_TRUE(trace.take().empty());
}

TEST(Trace, AGroupIsTheFirstWordOfItsLane) {
  EXPECT_EQ(TraceSpan{.lane = "pp > 1"}.group(), "pp");
  EXPECT_EQ(TraceSpan{.lane = "shard"}.group(), "shard");
}

}  // namespace
}  // namespace kintsugi
