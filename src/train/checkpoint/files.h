#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/file.h"
#include "core/hash.h"
#include "model/file_loader.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/write_queue.h"

namespace kintsugi {

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
// (model/checksums.h). The ranks share the ranges.
void verify_weights(Communicator& group, const std::filesystem::path& directory,
                    FileLoader& loader);

}  // namespace kintsugi
