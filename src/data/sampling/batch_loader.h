#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/sampling/batch_schedule.h"
#include "data/sampling/sample_order.h"
#include "data/sampling/sample_reader.h"

namespace kintsugi {

// Reads batches ahead in a separate thread: of every step, the samples of one data rank; at most
// `depth` batches at a time. The constructor allocates all memory.
class BatchLoader {
 public:
  struct Plan {
    BatchSchedule schedule;
    std::int64_t first_step = 1;
    std::int64_t batches = 0;          // steps to read
    std::int64_t rank = 0, ranks = 1;  // the data rank; each reads an equal range of every step
    std::int64_t depth = 4;
    std::vector<SkippedSamples> skipped = {};  // by rewinds, before the first step
  };
  // The order must outlive the loader.
  BatchLoader(const SampleOrder& order, const SampleOptions& options, const Plan& plan);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Waits for the next batch. It is valid until release(). An error in the thread is thrown here
  // when its batch is due.
  const SampleBatch& next();
  void release();

 private:
  void work();
  void fill(std::int64_t number, SampleBatch& batch);
  SampleBatch& slot(std::int64_t number) {
    return slots_[static_cast<std::size_t>(number % plan_.depth)];
  }

  const SampleOrder& order_;
  Plan plan_;
  std::int64_t batches_;  // total
  SampleReader reader_;
  std::vector<TokenRange> ranges_;
  std::vector<SampleBatch> slots_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::int64_t ready_ = 0;     // batches read so far
  std::int64_t released_ = 0;  // batches released so far
  bool handed_out_ = false;
  bool stop_ = false;
  std::exception_ptr error_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kintsugi
