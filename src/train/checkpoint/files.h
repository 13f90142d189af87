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
#include "tensor/safetensors.h"

namespace kintsugi {

// The files of one directory of a checkpoint, written by all ranks at once: rank 0 lays out every
// file, then each rank writes its pieces into their places. What was written where, and its hash,
// is in checksums.json; nothing else says how many ranks there were.
class CheckpointWriter {
 public:
  // All ranks of `group` (host memory) make one, and call the same functions in the same order.
  CheckpointWriter(Communicator& group, std::filesystem::path directory);

  void text(const std::string& name, const std::string& content);  // written by rank 0
  // Whole tensors in files of at most max_bytes: stem.safetensors, or
  // stem-0000i-of-0000n.safetensors with an index. Their contents come by put().
  void tensors(const std::string& stem, const std::vector<SafetensorsWriter::Announced>& tensors,
               std::uint64_t max_bytes);
  // Elements first … of a tensor that was announced, in host memory.
  void put(const std::string& name, std::int64_t first, const Tensor& elements);
  // When everybody has put everything: syncs, exchanges hashes, writes checksums.json.
  void finish();

 private:
  struct Place {
    std::string file;
    std::uint64_t offset;
    DType dtype;
  };
  // What this rank wrote without a gap.
  struct Run {
    std::string file;
    std::uint64_t offset = 0, bytes = 0;
    std::unique_ptr<StreamHash> hash;
  };
  bool is_first() const { return group_.rank() == 0; }
  void lay_out(const std::string& file, const std::vector<SafetensorsWriter::Announced>& tensors);
  void write(const std::string& file, std::uint64_t offset, const void* data, std::size_t bytes);

  Communicator& group_;
  std::filesystem::path directory_;
  std::map<std::string, std::string> hashes_;  // of texts
  std::map<std::string, Place> places_;        // by tensor
  std::map<std::string, std::unique_ptr<PlacedWriter>> open_;
  std::vector<Run> runs_;
};

// Reads every file of such a directory once, a share on each rank, and compares with
// checksums.json. UserError, on all ranks, for the first one that is damaged or missing.
void verify_files(Communicator& group, const std::filesystem::path& directory);

}  // namespace kintsugi
