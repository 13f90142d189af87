#include "backend/cuda/operation_timer.h"

#include <algorithm>
#include <map>
#include <utility>

namespace kintsugi::cuda {

OperationTimer::OperationTimer(Stream stream, Trace* trace) : stream_(stream), trace_(trace) {
  if (trace_ != nullptr) trace_->attach(*this);
}

OperationTimer::~OperationTimer() {
  if (trace_ != nullptr) trace_->detach(*this);
  clear();
}

void OperationTimer::clear() {
  for (const Record& record : records_) {
    cudaEventDestroy(record.begin);
    cudaEventDestroy(record.end);
  }
  records_.clear();
}

std::size_t OperationTimer::begin(SpanKind kind, std::string_view name) {
  Record record{kind, std::string(name), nullptr, nullptr};
  KINTSUGI_CUDA(cudaEventCreate(&record.begin));
  KINTSUGI_CUDA(cudaEventCreate(&record.end));
  records_.push_back(std::move(record));
  KINTSUGI_CUDA(cudaEventRecord(records_.back().begin, stream_));
  return records_.size() - 1;
}

void OperationTimer::end(std::size_t record) noexcept {
  cudaEventRecord(records_[record].end, stream_);
}

std::vector<OperationTime> OperationTimer::take() {
  KINTSUGI_CUDA(cudaStreamSynchronize(stream_));
  std::map<std::string, OperationTime> sums;
  for (const Record& record : records_) {
    float elapsed_ms = 0;
    KINTSUGI_CUDA(cudaEventElapsedTime(&elapsed_ms, record.begin, record.end));
    OperationTime& sum = sums[record.name];
    sum.name = record.name;
    sum.calls += 1;
    sum.milliseconds += elapsed_ms;
  }
  clear();
  std::vector<OperationTime> result;
  for (auto& [name, sum] : sums) result.push_back(std::move(sum));
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  return result;
}

double OperationTimer::seconds(cudaEvent_t event) const {
  KINTSUGI_CHECK(clock_, "event time requested before a trace began");
  return clock_->seconds(event);
}

void OperationTimer::trace_begins() {
  clear();
  clock_.emplace(stream_);
}

void OperationTimer::trace_ends() {
  KINTSUGI_CUDA(cudaStreamSynchronize(stream_));
  for (const Record& record : records_)
    trace_->add({.kind = record.kind,
                 .lane = record.kind == SpanKind::Phase ? "pipeline" : "compute",
                 .name = record.name,
                 .begin_s = seconds(record.begin),
                 .end_s = seconds(record.end)});
  clear();
}

}  // namespace kintsugi::cuda
