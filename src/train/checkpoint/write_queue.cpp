#include "train/checkpoint/write_queue.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kChunk = std::size_t{8} << 20;  // bytes written at once
constexpr std::size_t kBuffers = 16;
constexpr std::size_t kArriving = 4;  // copies from the device in flight
constexpr int kThreads = 6;           // that write files

class Heap final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override { return ::operator new(bytes); }
  void release(void* address, std::size_t) noexcept override { ::operator delete(address); }
};

Allocator& memory_of(Backend* backend) {
  static Heap heap;
  if (backend != nullptr) return *backend;
  return heap;
}

}  // namespace

WriteQueue::WriteQueue(Backend* backend, std::size_t largest)
    : backend_(backend),
      buffer_bytes_(std::clamp(largest, HostBuffers::kPage, kChunk)),
      buffers_(memory_of(backend), kBuffers, buffer_bytes_) {
  for (std::size_t i = 0; i < kBuffers; ++i) free_.push_back(buffers_[i]);
  try {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { write_jobs(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // fewer threads are enough
  }
}

WriteQueue::~WriteQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  try {
    if (backend_ != nullptr)
      for (const Job& job : arriving_) backend_->finish(job.arriving);
  } catch (...) {
    // The device has failed; the exception in flight reports it.
  }
}

// ---- the caller's thread

void WriteQueue::put(OffsetWriter& file, std::uint64_t offset, StreamHash& hash,
                     const Tensor& elements) {
  KINTSUGI_CHECK(elements.contiguous(), "a strided tensor for a file");
  auto* const from = static_cast<std::byte*>(elements.data());
  const bool on_host = backend_ == nullptr || backend_->is_on_host(elements);
  if (on_host && backend_ != nullptr)
    backend_->synchronize();  // offloaded state may still be in flight
  split({.file = &file,
         .offset = offset,
         .hash = &hash,
         .bytes = elements.bytes(),
         .buffered = !on_host},
        [&](Job& job, std::size_t begin) {
          if (on_host) {
            job.data = from + begin;
            return;
          }
          const Shape shape = {static_cast<std::int64_t>(job.bytes)};
          job.data = free_buffer();
          job.arriving = backend_->to_host(Tensor(job.data, DType::U8, shape),
                                           Tensor(from + begin, DType::U8, shape));
        });
}

void WriteQueue::put_copy(OffsetWriter& file, std::uint64_t offset, StreamHash& hash,
                          const void* data, std::size_t bytes) {
  split({.file = &file, .offset = offset, .hash = &hash, .bytes = bytes},
        [&](Job& job, std::size_t begin) {
          job.data = free_buffer();
          std::memcpy(job.data, static_cast<const std::byte*>(data) + begin, job.bytes);
        });
}

// Splits at multiples of the chunk size in the file, so that most writes are whole pages and
// blocks.
template <class F>
void WriteQueue::split(Job whole, const F& fetch) {
  for (std::size_t begin = 0; begin < whole.bytes;) {
    Job job = whole;
    job.offset += begin;
    job.bytes =
        std::min<std::size_t>({whole.bytes - begin, kChunk - job.offset % kChunk, buffer_bytes_});
    fetch(job, begin);
    arriving_.push_back(job);
    while (arriving_.size() > kArriving) submit_oldest();
    begin += job.bytes;
  }
}

std::byte* WriteQueue::free_buffer() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !free_.empty() || error_; });
  if (error_) std::rethrow_exception(error_);
  std::byte* const buffer = free_.back();
  free_.pop_back();
  return buffer;
}

// Hashes the buffer while another thread writes it. Only this thread assigns buffers to new jobs.
void WriteQueue::submit_oldest() {
  const Job job = arriving_.front();
  arriving_.pop_front();
  if (backend_ != nullptr) backend_->finish(job.arriving);
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    jobs_.push_back(job);
    ++unwritten_;
  }
  changed_.notify_all();
  job.hash->update(job.data, job.bytes);
}

void WriteQueue::finish() {
  while (!arriving_.empty()) submit_oldest();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return unwritten_ == 0 || error_; });
  if (error_) std::rethrow_exception(error_);
}

// ---- the threads

void WriteQueue::write_jobs() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      job.file->write_at(job.offset, job.data, job.bytes);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    if (job.buffered) free_.push_back(job.data);
    --unwritten_;
    changed_.notify_all();
  }
}

}  // namespace kintsugi
