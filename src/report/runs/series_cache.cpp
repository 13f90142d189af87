#include "report/runs/series_cache.h"

#include <algorithm>

namespace kintsugi {

void SeriesCache::with(const std::filesystem::path& run,
                       const std::function<void(const StepSeries&)>& use) {
  const std::lock_guard lock(mutex_);
  const auto found =
      entries_.try_emplace(run, Entry{StepSeries(run / "metrics.jsonl", most_bytes_ / 3)}).first;
  found->second.used = ++calls_;
  found->second.series.update();
  while (entries_.size() > 1 && all_bytes() > most_bytes_)
    entries_.erase(std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  use(found->second.series);
}

std::size_t SeriesCache::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return all_bytes();
}

std::size_t SeriesCache::all_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [run, entry] : entries_) bytes += entry.series.memory_bytes();
  return bytes;
}

}  // namespace kintsugi
