#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "report/runs/step_series.h"

namespace kintsugi {

// The series of the runs that are looked at, within a limit of memory: those that were not used for
// the longest time are dropped, and read again when they are needed. A series takes at most a
// third. Thread-safe; one thread reads at a time, so that the limit holds.
class SeriesCache {
 public:
  static constexpr std::size_t kMostBytes = 3 * StepSeries::kMostBytes;
  explicit SeriesCache(std::size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  // Reads what is new in RUN/metrics.jsonl and calls `use`.
  void with(const std::filesystem::path& run, const std::function<void(const StepSeries&)>& use);
  std::size_t memory_bytes() const;

 private:
  struct Entry {
    StepSeries series;
    std::uint64_t used = 0;  // when, as a number of calls
  };
  std::size_t all_bytes() const;

  mutable std::mutex mutex_;
  std::size_t most_bytes_;
  std::uint64_t calls_ = 0;
  std::map<std::filesystem::path, Entry> entries_;
};

}  // namespace kintsugi
