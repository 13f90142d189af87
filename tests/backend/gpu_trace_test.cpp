// Traces of GPU operations: their spans are in order and agree with the host's clock.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/phase.h"

namespace kintsugi {
namespace {

constexpr double kTolerance_s = 1e-3;  // between the clocks of device and host; really microseconds

class GpuTrace : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_device_count() == 0) GTEST_SKIP() << "no GPU";
    backend_ = make_gpu_backend({.trace = &trace_});
    arena_ = std::make_unique<Arena>(*backend_);
    for (Tensor* x : {&a_, &b_, &c_})
      *x = arena_->allocate(Region::Workspace, "x", DType::F32, {512, 512});
  }
  void calls() {
    backend_->fill(a_, 1.0);
    backend_->matmul(c_, a_, b_);
  }
  static std::vector<TraceSpan> of_kind(const std::vector<TraceSpan>& spans, SpanKind kind) {
    std::vector<TraceSpan> found;
    std::copy_if(spans.begin(), spans.end(), std::back_inserter(found),
                 [&](const TraceSpan& span) { return span.kind == kind; });
    return found;
  }
  Trace trace_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Arena> arena_;
  Tensor a_, b_, c_;
};

TEST_F(GpuTrace, OperationsAreInTheirPhaseAndInHostTime) {
  calls();
  EXPECT_FALSE(backend_->traces());
  const double before = Trace::now();
  trace_.begin();
  {
    const Phase phase(*backend_, [] { return "forward 0"; });
    backend_->fill(a_, 1.0);
    const Phase layer(*backend_, [] { return "layer 3"; });
    backend_->matmul(c_, a_, b_);
  }
  trace_.end();
  const double after = Trace::now();
  const auto spans = trace_.take();
  const auto phases = of_kind(spans, SpanKind::Phase);
  const auto operations = of_kind(spans, SpanKind::Operation);
  ASSERT_EQ(phases.size(), 2u);
  ASSERT_EQ(operations.size(), 2u);
  const TraceSpan &phase = phases[0], &layer = phases[1], &fill = operations[0],
                  &matmul = operations[1];
  EXPECT_EQ(phase.name, "forward 0");
  EXPECT_EQ(phase.lane, "pipeline");
  EXPECT_EQ(layer.name, "layer 3");
  EXPECT_EQ(layer.lane, "layers");
  EXPECT_EQ(fill.name, "fill");
  EXPECT_EQ(fill.phase, "forward 0");
  EXPECT_EQ(fill.layer, "");
  EXPECT_EQ(matmul.name, "matmul 512x512x512");
  EXPECT_EQ(matmul.phase, "forward 0");
  EXPECT_EQ(matmul.layer, "layer 3");
  EXPECT_EQ(matmul.work, WorkKind::Matmul);
  EXPECT_EQ(matmul.flops, 2.0 * 512 * 512 * 512);
  EXPECT_EQ(matmul.bytes, 3 * 512 * 512 * 4);
  EXPECT_EQ(matmul.dtype, "fp32");
  EXPECT_LE(phase.begin_s, fill.begin_s);
  EXPECT_LT(fill.begin_s, fill.end_s);
  EXPECT_LE(fill.end_s, matmul.begin_s);
  EXPECT_LT(matmul.begin_s, matmul.end_s);
  EXPECT_LE(matmul.end_s, phase.end_s);
  EXPECT_GE(phase.begin_s, before - kTolerance_s);
  EXPECT_LE(phase.end_s, after + kTolerance_s);
}

// With CUPTI, which is part of every CUDA toolkit.
TEST_F(GpuTrace, KernelsCopiesAndCallsOfTheRuntimeNameTheirOperation) {
  std::vector<float> values(512 * 512, 1.0f);
  calls();
  trace_.begin();
  backend_->upload(a_, values.data());
  backend_->matmul(c_, a_, b_);
  trace_.end();
  const auto spans = trace_.take();
  const auto operations = of_kind(spans, SpanKind::Operation);
  ASSERT_EQ(operations.size(), 1u);
  const auto kernels = of_kind(spans, SpanKind::Kernel);
  ASSERT_FALSE(kernels.empty());
  double begin = kernels.front().begin_s, end = 0;
  for (const TraceSpan& kernel : kernels) {
    EXPECT_EQ(kernel.operation, operations[0].operation) << kernel.name;
    EXPECT_GT(kernel.blocks, 0);
    begin = std::min(begin, kernel.begin_s);
    end = std::max(end, kernel.end_s);
  }
  EXPECT_EQ(operations[0].begin_s, begin);
  EXPECT_EQ(operations[0].end_s, end);
  const auto copies = of_kind(spans, SpanKind::Memcpy);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].bytes, 512 * 512 * 4);
  EXPECT_EQ(copies[0].operation, 0);
  EXPECT_LE(copies[0].end_s, begin);
  const auto launches = [&](const TraceSpan& span) {
    return span.kind == SpanKind::Runtime && span.operation == operations[0].operation &&
           span.name.find("aunchKernel") != std::string::npos;
  };
  const auto launch = std::find_if(spans.begin(), spans.end(), launches);
  ASSERT_NE(launch, spans.end());
  EXPECT_LT(launch->begin_s, begin + kTolerance_s);
}

TEST_F(GpuTrace, NothingIsReplayedWhileItIsOn) {
  const auto twice = [&] {
    for (int i = 0; i < 2; ++i) backend_->replay(1, [&] { calls(); });
  };
  twice();  // the second call is recorded
  trace_.begin();
  twice();
  trace_.end();
  EXPECT_EQ(of_kind(trace_.take(), SpanKind::Operation).size(), 4u);
  twice();
  backend_->synchronize();
  EXPECT_TRUE(trace_.take().empty());
}

}  // namespace
}  // namespace kintsugi
