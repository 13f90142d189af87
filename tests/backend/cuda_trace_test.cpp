// Traces of GPU operations: their spans are in order and agree with the host's clock.
#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "backend/phase.h"

namespace kintsugi {
namespace {

constexpr double kTolerance_s = 1e-3;  // between the clocks of device and host; really microseconds

class CudaTrace : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    backend_ = make_cuda_backend({.trace = &trace_});
    arena_ = std::make_unique<Arena>(*backend_);
    for (Tensor* x : {&a_, &b_, &c_})
      *x = arena_->allocate(Region::Workspace, "x", DType::F32, {512, 512});
  }
  void calls() {
    backend_->fill(a_, 1.0);
    backend_->matmul(c_, a_, b_);
  }
  Trace trace_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Arena> arena_;
  Tensor a_, b_, c_;
};

TEST_F(CudaTrace, OperationsAreInTheirPhaseAndInHostTime) {
  calls();
  EXPECT_FALSE(backend_->traces());
  const double before = Trace::now();
  trace_.begin();
  {
    const Phase phase(*backend_, [] { return "forward 0"; });
    calls();
  }
  trace_.end();
  const double after = Trace::now();
  const auto spans = trace_.take();
  ASSERT_EQ(spans.size(), 3u);
  const TraceSpan &phase = spans[0], &fill = spans[1], &matmul = spans[2];
  EXPECT_EQ(phase.kind, SpanKind::Phase);
  EXPECT_EQ(phase.name, "forward 0");
  EXPECT_EQ(fill.name, "fill");
  EXPECT_EQ(matmul.kind, SpanKind::Operation);
  EXPECT_EQ(matmul.name, "matmul 512x512x512");
  EXPECT_LE(phase.begin_s, fill.begin_s);
  EXPECT_LT(fill.begin_s, fill.end_s);
  EXPECT_LE(fill.end_s, matmul.begin_s);
  EXPECT_LT(matmul.begin_s, matmul.end_s);
  EXPECT_LE(matmul.end_s, phase.end_s);
  EXPECT_GE(phase.begin_s, before - kTolerance_s);
  EXPECT_LE(phase.end_s, after + kTolerance_s);
}

TEST_F(CudaTrace, NothingIsReplayedWhileItIsOn) {
  const auto twice = [&] {
    for (int i = 0; i < 2; ++i) backend_->replay(1, [&] { calls(); });
  };
  twice();  // the second call is recorded
  trace_.begin();
  twice();
  trace_.end();
  EXPECT_EQ(trace_.take().size(), 4u);
  twice();
  backend_->synchronize();
  EXPECT_TRUE(trace_.take().empty());
}

}  // namespace
}  // namespace kintsugi
