#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "report/runs/step_series.h"

namespace kintsugi {

// The series of the runs that are looked at, within a limit of memory: those that were not used for
// the longest time are dropped, and read again when they are needed. A series takes at most a
// third. Thread-safe: a large file does not keep the readers of other runs waiting. Two files are
// read at a time, so that those being read take no more than two thirds of the limit in addition.
class SeriesCache {
 public:
  static constexpr std::size_t kMostBytes = 3 * StepSeries::kMostBytes;
  explicit SeriesCache(std::size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  // Reads what is new in RUN/metrics.jsonl and calls `use`, for one thread per run at a time.
  void with(const std::filesystem::path& run, const std::function<void(const StepSeries&)>& use);
  std::size_t memory_bytes() const;

 private:
  // The mutex of an entry is locked before that of the cache.
  struct Entry {
    explicit Entry(StepSeries of) : series(std::move(of)) {}
    std::mutex mutex;  // guards series
    StepSeries series;
    // Guarded by the mutex of the cache.
    std::size_t bytes = 0;   // of the series when it was last read
    std::uint64_t used = 0;  // when, as a number of calls
  };
  std::shared_ptr<Entry> entry_of(const std::filesystem::path& run);
  void read(Entry& entry);
  void drop_others(const Entry& kept);  // until the limit holds
  std::size_t all_bytes() const;

  mutable std::mutex mutex_;  // guards calls_ and entries_
  std::size_t most_bytes_;
  std::uint64_t calls_ = 0;
  std::map<std::filesystem::path, std::shared_ptr<Entry>> entries_;
  std::counting_semaphore<2> readers_{2};
};

// The reply of /api/series: {"axis", "rows", "last_step", "keys": {"loss": {"x", "y", "low",
// "high"}}}. Keys that the series does not have are left out. Values have the digits of fp32.
std::string series_json(const StepSeries& series, const std::vector<std::string>& keys,
                        const SeriesQuery& range);

// The rows from `first_row` on for a live view, at most `most` of each key: {"id", "keys": {"loss":
// {"x", "y"}}, "steps", "tokens", "hours", "rows"}. Neighbouring rows
// are averaged where there are more; x is the step of the last of them, and all x are in "steps".
std::string new_rows_json(const StepSeries& series, const std::string& id, std::size_t first_row,
                          std::size_t most);

}  // namespace kintsugi
