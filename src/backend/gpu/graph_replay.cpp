#include "backend/gpu/graph_replay.h"

namespace kintsugi::gpu {

GraphReplay::~GraphReplay() { forget_all(); }

void GraphReplay::forget_all() noexcept {
  for (const Entry& entry : entries_)
    if (entry.graph != nullptr) destroy(entry.graph);
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
  launch(entry.graph, stream);
}

Graph GraphReplay::capture(const std::function<void()>& calls, Stream stream) {
  begin_capture(stream);
  try {
    calls();
  } catch (...) {
    abandon_capture(stream);  // makes the stream usable again
    throw;
  }
  return end_capture(stream);
}

void GraphReplay::forget_oldest(Stream stream) {
  const Entry& oldest = entries_.back();
  if (oldest.graph != nullptr) {
    synchronize(stream);  // it may still be running
    destroy(oldest.graph);
  }
  by_key_.erase(oldest.key);
  entries_.pop_back();
}

}  // namespace kintsugi::gpu
