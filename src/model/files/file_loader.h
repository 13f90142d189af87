#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/progress.h"

namespace kintsugi {

// Loads ranges of files into tensors and verifies hashes, reading every byte once. Everything is
// announced first. run() then reads the files in order: several threads read into page-locked
// buffers while the calling thread hashes earlier buffers and copies them to the device.
class FileLoader {
 public:
  explicit FileLoader(Backend& backend) : backend_(&backend), memory_(&backend) {}
  // Without a device: only verifies hashes. `memory` is for the buffers.
  explicit FileLoader(Allocator& memory) : memory_(&memory) {}

  int open(const std::filesystem::path& path);  // the same file may be opened again
  std::uint64_t size(int file) const { return files_[file].reader->size(); }
  // Loads elements of type `stored`, from byte `offset` of a file on, into a contiguous tensor on
  // the device or in host memory, converted to its type.
  void load(int file, std::uint64_t offset, DType stored, const Tensor& destination);
  // The bytes must have this hash (hex64). Otherwise run() calls `damaged`, which throws.
  using Damaged = void (*)(const std::filesystem::path&);
  void verify(int file, std::uint64_t offset, std::uint64_t bytes, std::string hash,
              Damaged damaged);
  // Drops everything that load() announced; hashes are still verified.
  void forget_loads();

  // Throws Failure if a file cannot be read to its end. Tensors are then partly written.
  // `progress`: bytes.
  void run(const ProgressCall& progress = {});

 private:
  struct Target {
    std::uint64_t offset;  // in the file
    std::byte* destination;
    std::int64_t elements;
    DType stored, dtype;
    bool on_host;

    std::uint64_t end() const {
      return offset + static_cast<std::uint64_t>(elements) * size_of(stored);
    }
  };
  struct HashedRange {
    std::uint64_t offset, bytes;
    std::string expected;
    Damaged damaged;
    std::unique_ptr<StreamHash> hash;
  };
  struct File {
    std::unique_ptr<FileReader> reader;
    std::vector<Target> targets;
    std::vector<HashedRange> hashed;
  };
  // One read: bytes [offset, offset + bytes) of a file, and the tensors they are for.
  struct Chunk {
    std::size_t file;
    std::uint64_t offset;
    std::size_t bytes;
    std::vector<Target> targets;  // offsets are relative to the chunk
  };
  class Reader;

  std::vector<Chunk> chunks();
  void split_file(std::size_t file, std::vector<Chunk>& chunks);
  void hash(const Chunk& chunk, const std::byte* bytes);

  Backend* backend_ = nullptr;
  Allocator* memory_;
  std::map<std::filesystem::path, int> by_path_;
  std::vector<File> files_;
};

}  // namespace kintsugi
