#include "backend/cuda/transfers.h"

#include <utility>

namespace kintsugi::cuda {

Transfers::Copy::Copy() {
  KINTSUGI_CUDA(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  KINTSUGI_CUDA(cudaEventCreate(&begin));
  KINTSUGI_CUDA(cudaEventCreate(&end));
}

Transfers::Copy::~Copy() {
  cudaEventDestroy(ready);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

Transfers::Transfers() {
  for (Stream& lane : lanes_)
    KINTSUGI_CUDA(cudaStreamCreateWithFlags(&lane, cudaStreamNonBlocking));
}

Transfers::~Transfers() {
  for (const Stream lane : lanes_) {
    cudaStreamSynchronize(lane);
    cudaStreamDestroy(lane);
  }
}

void Transfers::count(const Copy& copy) {
  float milliseconds = 0;
  KINTSUGI_CUDA(cudaEventElapsedTime(&milliseconds, copy.begin, copy.end));
  Backend::TransferTotals& total = totals_[static_cast<std::size_t>(copy.direction)];
  total.bytes += static_cast<std::int64_t>(copy.bytes);
  total.busy_s += 1e-3 * static_cast<double>(milliseconds);
}

std::unique_ptr<Transfers::Copy> Transfers::free_copy() {
  if (unfinished_.empty()) return std::make_unique<Copy>();
  const cudaEvent_t oldest = unfinished_.front()->end;
  if (unfinished_.size() < kMaxUnfinished) {
    const cudaError_t status = cudaEventQuery(oldest);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return std::make_unique<Copy>();
    }
    KINTSUGI_CUDA(status);
  }
  KINTSUGI_CUDA(cudaEventSynchronize(oldest));
  std::unique_ptr<Copy> copy = std::move(unfinished_.front());
  unfinished_.pop_front();
  count(*copy);
  return copy;
}

Backend::Transfer Transfers::start(Direction direction, void* destination, const void* source,
                                   std::size_t bytes, Stream compute) {
  KINTSUGI_CHECK(!is_capturing(compute), "transfer started while a graph is captured");
  if (bytes == 0) return {};
  std::unique_ptr<Copy> copy = free_copy();
  copy->direction = direction;
  copy->bytes = bytes;
  const Stream stream = lane(direction);
  KINTSUGI_CUDA(cudaEventRecord(copy->ready, compute));
  KINTSUGI_CUDA(cudaStreamWaitEvent(stream, copy->ready, 0));
  KINTSUGI_CUDA(cudaEventRecord(copy->begin, stream));
  KINTSUGI_CUDA(cudaMemcpyAsync(
      destination, source, bytes,
      direction == Direction::ToDevice ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream));
  KINTSUGI_CUDA(cudaEventRecord(copy->end, stream));
  pending_[++tickets_] = std::move(copy);
  return {tickets_};
}

std::unique_ptr<Transfers::Copy> Transfers::take(Backend::Transfer transfer) {
  const auto found = pending_.find(transfer.ticket);
  KINTSUGI_CHECK(found != pending_.end(), "transfer {} was waited for before, or never started",
                 transfer.ticket);
  std::unique_ptr<Copy> copy = std::move(found->second);
  pending_.erase(found);
  return copy;
}

void Transfers::wait(Backend::Transfer transfer, Stream compute) {
  if (transfer.ticket == 0) return;
  std::unique_ptr<Copy> copy = take(transfer);
  KINTSUGI_CUDA(cudaStreamWaitEvent(compute, copy->end, 0));
  unfinished_.push_back(std::move(copy));
}

void Transfers::finish(Backend::Transfer transfer) {
  if (transfer.ticket == 0) return;
  std::unique_ptr<Copy> copy = take(transfer);
  KINTSUGI_CUDA(cudaEventSynchronize(copy->end));
  unfinished_.push_back(std::move(copy));
}

Backend::LinkTotals Transfers::totals() {
  while (!unfinished_.empty()) {
    KINTSUGI_CUDA(cudaEventSynchronize(unfinished_.front()->end));
    count(*unfinished_.front());
    unfinished_.pop_front();
  }
  return {totals_[0], totals_[1]};
}

}  // namespace kintsugi::cuda
