#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/sampling/sample_order.h"
#include "data/sampling/sample_reader.h"

namespace kintsugi {

// Reads the batches of a run ahead of it, in a thread of its own: `batch` samples from `first` on,
// then as many `stride` samples later, at most `depth` batches at once. All memory is taken at the
// start.
class BatchLoader {
 public:
  struct Plan {
    std::int64_t first = 0;
    std::int64_t batches = 0;
    std::int64_t batch = 1;
    std::int64_t stride = 1;  // the batch of all ranks together
    std::int64_t depth = 4;
  };
  // The order must outlive the loader.
  BatchLoader(const SampleOrder& order, const SampleOptions& options, const Plan& plan);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The next batch, waiting for it if need be; it stays as it is until release(). What went wrong
  // in the thread is thrown here, when its batch is asked for.
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
  std::int64_t batches_;  // in all
  SampleReader reader_;
  std::vector<TokenPiece> pieces_;
  std::vector<SampleBatch> slots_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::int64_t ready_ = 0;     // batches read so far
  std::int64_t released_ = 0;  // batches handed back so far
  bool handed_out_ = false;
  bool stop_ = false;
  std::exception_ptr error_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kintsugi
