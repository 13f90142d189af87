#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "core/file.h"
#include "core/hash.h"
#include "tensor/host_buffers.h"

namespace kintsugi {

// Writes tensors to files. Copies from the device into page-locked buffers, hashing (in the order
// of the calls) and writes (by several threads) overlap.
class WriteQueue {
 public:
  // Allocates all its memory. `largest`: bytes of the largest tensor. Without a backend, all
  // tensors are in host memory and complete; then it may be used in any one thread.
  WriteQueue(Backend* backend, std::size_t largest);
  ~WriteQueue();  // drops writes that have not started
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // All functions throw the error of an earlier write. File and hash must live until finish().
  // Writes a contiguous tensor on the device or in host memory. It must not change before finish().
  void put(OffsetWriter& file, std::uint64_t offset, StreamHash& hash, const Tensor& elements);
  // Writes memory of the caller, which may be reused when the call returns.
  void put_copy(OffsetWriter& file, std::uint64_t offset, StreamHash& hash, const void* data,
                std::size_t bytes);
  // Returns when everything is hashed and has been given to the operating system.
  void finish();

 private:
  struct Job {
    OffsetWriter* file = nullptr;
    std::uint64_t offset = 0;
    StreamHash* hash = nullptr;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool buffered = true;  // data is one of the buffers; otherwise the tensor itself
    Backend::Transfer arriving = {};
  };
  template <class F>
  void split(Job job, const F& fetch);
  std::byte* free_buffer();
  void submit_oldest();
  void write_jobs();

  Backend* backend_;
  std::size_t buffer_bytes_;
  HostBuffers buffers_;
  std::deque<Job> arriving_;  // from the device, in order
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::size_t unwritten_ = 0;  // jobs that are not written yet
  std::vector<std::byte*> free_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kintsugi
