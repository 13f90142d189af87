#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "core/file.h"
#include "core/hash.h"
#include "model/files/file_loader.h"
#include "tensor/arena.h"
#include "tensor/safetensors.h"

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
  void split(Job job, const auto& fetch);
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

// Writes the files of one directory of a checkpoint. Rank 0 creates every file with its final size,
// then all ranks write their ranges of it in parallel. checksums.json lists the ranges and their
// hashes; nothing else depends on the number of ranks.
class CheckpointWriter {
 public:
  // Collective over `group`, which communicates host memory: all ranks construct a writer and call
  // the same functions in the same order, except put() and put_copy().
  CheckpointWriter(Communicator& group, std::filesystem::path directory);

  void text(const std::string& name, const std::string& content);  // written by rank 0
  // Creates the files for these tensors, each of at most max_bytes: stem.safetensors, or
  // stem-0000i-of-0000n.safetensors with an index. put() writes their contents.
  void tensors(const std::string& stem, const std::vector<SafetensorsWriter::Announced>& tensors,
               std::uint64_t max_bytes);
  // Writes elements of an announced tensor, from index `first` on. put() takes a tensor of the
  // backend, put_copy() memory of the caller.
  void put(WriteQueue& queue, const std::string& name, std::int64_t first, const Tensor& elements);
  void put_copy(WriteQueue& queue, const std::string& name, std::int64_t first,
                const Tensor& elements);
  // Call it after all ranks have finished their queues. Syncs the files, gathers the hashes and
  // writes checksums.json.
  void finish();

 private:
  struct Location {
    std::string file;
    std::uint64_t offset;
    DType dtype;
  };
  // Contiguous bytes that this rank wrote.
  struct WrittenRange {
    std::string file;
    std::uint64_t offset = 0, bytes = 0;
    std::unique_ptr<StreamHash> hash;
  };
  bool is_first() const { return group_.rank() == 0; }
  // The open file and offset to write to, and the hash of the WrittenRange.
  struct Target {
    OffsetWriter& file;
    std::uint64_t offset;
    StreamHash& hash;
  };
  Target target(const std::string& file, std::uint64_t offset, std::size_t bytes);
  Target target(const std::string& name, std::int64_t first, const Tensor& elements);

  Communicator& group_;
  std::filesystem::path directory_;
  std::map<std::string, std::string> hashes_;  // of text files
  std::map<std::string, Location> locations_;  // by tensor
  std::map<std::string, std::unique_ptr<OffsetWriter>> open_;
  std::vector<WrittenRange> ranges_;
};

// Checks every file of such a directory against checksums.json. Text files and file sizes are
// checked immediately. Ranges of tensors are distributed over the ranks and announced to the
// loader, which verifies them in run(). Throws DamagedFile, on all ranks, for the first file that
// is damaged or missing. A file of this run that exists but cannot be read is a Failure. The
// message has a remedy if it is the checkpoint of another run (run.from); from its own, a run falls
// back to the one before.
enum class CheckpointOf : bool { ThisRun, OtherRun };
void verify_files(Communicator& group, const std::filesystem::path& directory, FileLoader& loader,
                  CheckpointOf owner);

// Checks one file of a checkpoint again, on this rank alone. Failure if it cannot be read.
bool is_still_damaged(const std::filesystem::path& checkpoint, const std::filesystem::path& file);

// Announces the checksums of a directory whose weights another run starts from
// (model/files/fingerprint.h). The ranks share the ranges.
void verify_weights(Communicator& group, const std::filesystem::path& directory,
                    FileLoader& loader);

}  // namespace kintsugi
