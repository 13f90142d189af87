#include "backend/cuda/operation_timer.h"

#include <algorithm>
#include <map>
#include <utility>

namespace kintsugi::cuda {

OperationTimer::~OperationTimer() {
  for (const Record& record : records_) {
    cudaEventDestroy(record.begin);
    cudaEventDestroy(record.end);
  }
}

OperationTimer::Span::~Span() {
  if (timer_ != nullptr) cudaEventRecord(timer_->records_.back().end, stream_);
}

OperationTimer::Span OperationTimer::span(std::string_view name, Stream stream) {
  if (!on_) return Span(nullptr, stream);
  Record record{std::string(name), nullptr, nullptr};
  KINTSUGI_CUDA(cudaEventCreate(&record.begin));
  KINTSUGI_CUDA(cudaEventCreate(&record.end));
  records_.push_back(std::move(record));
  KINTSUGI_CUDA(cudaEventRecord(records_.back().begin, stream));
  return Span(this, stream);
}

std::vector<OperationTime> OperationTimer::take(Stream stream) {
  KINTSUGI_CUDA(cudaStreamSynchronize(stream));
  std::map<std::string, OperationTime> sums;
  for (const Record& record : records_) {
    float elapsed_ms = 0;
    KINTSUGI_CUDA(cudaEventElapsedTime(&elapsed_ms, record.begin, record.end));
    OperationTime& sum = sums[record.name];
    sum.name = record.name;
    sum.calls += 1;
    sum.milliseconds += elapsed_ms;
    cudaEventDestroy(record.begin);
    cudaEventDestroy(record.end);
  }
  records_.clear();
  std::vector<OperationTime> result;
  for (auto& [name, sum] : sums) result.push_back(std::move(sum));
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  return result;
}

}  // namespace kintsugi::cuda
