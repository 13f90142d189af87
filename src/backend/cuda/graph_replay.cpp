#include "backend/cuda/graph_replay.h"

namespace kintsugi::cuda {

GraphReplay::~GraphReplay() { forget_all(); }

void GraphReplay::forget_all() noexcept {
  for (const Entry& entry : entries_)
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  entries_.clear();
  by_key_.clear();
}

void GraphReplay::run(std::uint64_t key, const std::function<void()>& calls, Stream stream) {
  if (is_capturing(stream)) return calls();  // part of an enclosing capture
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) {
    calls();
    if (entries_.size() == kMaxGraphs) forget_oldest(stream);
    entries_.push_front({key, nullptr});
    by_key_[key] = entries_.begin();
    return;
  }
  entries_.splice(entries_.begin(), entries_, known->second);
  Entry& entry = entries_.front();
  if (entry.graph == nullptr) entry.graph = capture(calls, stream);
  KINTSUGI_CUDA(cudaGraphLaunch(entry.graph, stream));
}

cudaGraphExec_t GraphReplay::capture(const std::function<void()>& calls, Stream stream) {
  cudaGraph_t graph = nullptr;
  KINTSUGI_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    calls();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);  // makes the stream usable again
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  KINTSUGI_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  KINTSUGI_CUDA(status);
  return executable;
}

void GraphReplay::forget_oldest(Stream stream) {
  const Entry& oldest = entries_.back();
  if (oldest.graph != nullptr) {
    KINTSUGI_CUDA(cudaStreamSynchronize(stream));  // it may still be running
    KINTSUGI_CUDA(cudaGraphExecDestroy(oldest.graph));
  }
  by_key_.erase(oldest.key);
  entries_.pop_back();
}

}  // namespace kintsugi::cuda
