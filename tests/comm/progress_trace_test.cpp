// The trace of operations of the progress thread.
#include <gtest/gtest.h>

#include <atomic>

#include "comm/progress_thread.h"

namespace kintsugi {
namespace {

class GatedOperation : public Operation {
 public:
  explicit GatedOperation(std::atomic<bool>& gate) : gate_(gate) {}
  bool advance() override { return gate_; }

 private:
  std::atomic<bool>& gate_;
};

TEST(ProgressTrace, AnOperationLastsFromItsStartToItsEnd) {
  Trace trace;
  std::atomic<bool> gate = false;
  CommunicationTimes times;
  ProgressThread thread(&trace);
  EXPECT_FALSE(thread.traces());
  trace.begin();
  EXPECT_TRUE(thread.traces());
  const int lane = 0;
  const auto start = [&](const char* name) {
    auto operation = std::make_shared<GatedOperation>(gate);
    operation->describe({.kind = SpanKind::Communication, .lane = "dp", .name = name, .bytes = 9});
    thread.submit(operation, &lane, times);
    return operation;
  };
  const double before = Trace::now();
  const auto first = start("first"), second = start("second");
  const auto silent = std::make_shared<GatedOperation>(gate);
  thread.submit(silent, nullptr, times);
  gate = true;
  trace.end();  // waits for all three
  EXPECT_TRUE(thread.idle());
  const auto spans = trace.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "first");
  EXPECT_EQ(spans[0].bytes, 9);
  EXPECT_LE(before, spans[0].begin_s);
  EXPECT_LE(spans[0].begin_s, spans[0].end_s);
  EXPECT_LE(spans[0].end_s, spans[1].begin_s);  // they share a lane
  EXPECT_LE(spans[1].end_s, Trace::now());
  for (const auto& operation : {first, second, silent}) thread.wait(*operation);
}

}  // namespace
}  // namespace kintsugi
