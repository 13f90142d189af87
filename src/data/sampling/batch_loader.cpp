#include "data/sampling/batch_loader.h"

#include "core/error.h"

namespace kintsugi {

BatchLoader::BatchLoader(const SampleOrder& order, const SampleOptions& options, const Plan& plan)
    : order_(order), plan_(plan), batches_(plan.batches), reader_(options) {
  KINTSUGI_CHECK(plan.depth > 0 && plan.rank >= 0 && plan.rank < plan.ranks,
                 "{} batches ahead on rank {} of {}", plan.depth, plan.rank, plan.ranks);
  ranges_.reserve(static_cast<std::size_t>(options.length) + 1);  // worst case: ranges of one token
  const std::int64_t largest = plan.schedule.full() / plan.ranks;
  for (std::int64_t i = 0; i < plan.depth; ++i) slots_.emplace_back(largest, options);
  thread_ = std::thread([this] { work(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchLoader::fill(std::int64_t number, SampleBatch& batch) {
  const std::int64_t step = plan_.first_step + number;
  const std::int64_t samples = plan_.schedule.sequences(step) / plan_.ranks;
  const std::int64_t first =
      data_position(plan_.skipped, plan_.schedule.first_sample(step)) + plan_.rank * samples;
  batch.resize(samples);
  for (std::int64_t i = 0; i < samples; ++i) {
    ranges_.clear();
    order_.locate(first + i, ranges_);
    reader_.read(ranges_, batch, i);
  }
}

void BatchLoader::work() {
  try {
    for (std::int64_t number = 0; number < batches_; ++number) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || number < released_ + plan_.depth; });
        if (stop_) return;
      }
      fill(number, slot(number));
      {
        const std::lock_guard lock(mutex_);
        ready_ = number + 1;
      }
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  changed_.notify_all();
}

const SampleBatch& BatchLoader::next() {
  std::unique_lock lock(mutex_);
  KINTSUGI_CHECK(!handed_out_, "next() before the previous batch was released");
  KINTSUGI_CHECK(released_ < batches_, "all {} batches have been read", batches_);
  changed_.wait(lock, [&] { return released_ < ready_ || error_; });
  if (released_ == ready_) std::rethrow_exception(error_);
  handed_out_ = true;
  return slot(released_);
}

void BatchLoader::release() {
  {
    const std::lock_guard lock(mutex_);
    KINTSUGI_CHECK(handed_out_, "release() without next()");
    handed_out_ = false;
    released_ += 1;
  }
  changed_.notify_all();
}

}  // namespace kintsugi
