#include "report/runs/series_cache.h"

namespace kintsugi {

void SeriesCache::with(const std::filesystem::path& run,
                       const std::function<void(const StepSeries&)>& use) {
  const std::shared_ptr<Entry> entry = entry_of(run);  // may be dropped meanwhile
  const std::lock_guard lock(entry->mutex);
  read(*entry);
  {
    const std::lock_guard all(mutex_);
    entry->bytes = entry->series.memory_bytes();
    drop_others(*entry);
  }
  use(entry->series);
}

std::shared_ptr<SeriesCache::Entry> SeriesCache::entry_of(const std::filesystem::path& run) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Entry>& entry = entries_[run];
  if (!entry) entry = std::make_shared<Entry>(StepSeries(run / "metrics.jsonl", most_bytes_ / 3));
  entry->used = ++calls_;
  return entry;
}

void SeriesCache::read(Entry& entry) {
  readers_.acquire();
  struct Release {
    std::counting_semaphore<2>& readers;
    ~Release() { readers.release(); }
  } const release{readers_};
  entry.series.update();
}

void SeriesCache::drop_others(const Entry& kept) {
  while (all_bytes() > most_bytes_) {
    auto oldest = entries_.end();
    for (auto one = entries_.begin(); one != entries_.end(); ++one)
      if (one->second.get() != &kept &&
          (oldest == entries_.end() || one->second->used < oldest->second->used))
        oldest = one;
    if (oldest == entries_.end()) return;
    entries_.erase(oldest);
  }
}

std::size_t SeriesCache::memory_bytes() const {
  const std::lock_guard lock(mutex_);
  return all_bytes();
}

std::size_t SeriesCache::all_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [run, entry] : entries_) bytes += entry->bytes;
  return bytes;
}

}  // namespace kintsugi
