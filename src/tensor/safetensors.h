#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/file.h"
#include "core/hash.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace kintsugi {

// The file format of Hugging Face models: a u64 header length, a JSON header, row-major tensors
// without gaps. Reading an invalid file throws a UserError that names the file, the tensor and the
// remedy.

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as the file spells it: "BF16"
  std::optional<DType> dtype;  // none for types we do not compute with (F8_E4M3, BOOL …)
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes, from the first byte after the header
  std::uint64_t end = 0;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of the data
  SafetensorsMetadata metadata;
  std::size_t data_offset = 0;  // file offset of `begin` 0
};

// Reads and checks the header of a whole file in memory; `source` names it in errors.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& source);

// One file, memory-mapped and checked.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  const SafetensorsEntry* find(std::string_view name) const;  // nullptr when there is none
  // The data of an entry of this file. It may be unaligned: copy it, do not cast it.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  std::uint64_t offset(const SafetensorsEntry& entry) const {  // file offset of its first byte
    return header_.data_offset + entry.begin;
  }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // keys live in header_.entries
};

// The weights of a Hugging Face model: a directory with model.safetensors or with an index and its
// shards, or the path of one .safetensors file.
class SafetensorsModel {
 public:
  struct Location {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
    explicit operator bool() const { return entry != nullptr; }
    std::span<const std::byte> bytes() const { return file->bytes(*entry); }
  };

  // `stem` is the common prefix of the file names: "model", or "optimizer" for optimizer state.
  explicit SafetensorsModel(const std::filesystem::path& path, const std::string& stem = "model");

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  Location find(std::string_view name) const;  // false when there is none

 private:
  void open_single(const std::filesystem::path& file);
  void open_shards(const std::filesystem::path& index);

  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string_view, std::size_t>
      file_of_;  // tensor name -> files_; keys live in names_
};

// Writes one file sequentially. The constructor takes the list of tensors and writes the header;
// append() adds their data in the same order.
class SafetensorsWriter {
 public:
  struct Announced {
    std::string name;
    DType dtype;
    Shape shape;
    std::uint64_t bytes() const {
      return static_cast<std::uint64_t>(shape.elements()) * size_of(dtype);
    }
  };
  struct Result {
    std::uint64_t bytes;  // of the whole file
    std::uint64_t hash;   // hash64 of the whole file
  };

  // The header, with the length before it, and the file offsets of the tensors: for callers that
  // write the data in another order.
  struct Plan {
    std::string header;
    std::vector<std::uint64_t> offsets;  // of each tensor, from the start of the file
    std::uint64_t bytes = 0;             // of the whole file
  };
  static Plan plan(const std::vector<Announced>& tensors, const std::string& path,
                   const SafetensorsMetadata& metadata = {{"format", "pt"}});

  SafetensorsWriter(const std::filesystem::path& path, std::vector<Announced> tensors,
                    const SafetensorsMetadata& metadata = {{"format", "pt"}});

  void append(std::string_view name, const void* data, std::size_t bytes);
  // Adds the next bytes of a tensor; the next tensor follows when it is complete.
  void append_part(std::string_view name, const void* data, std::size_t bytes);
  Result finish();  // on disk after this

 private:
  void write(const void* data, std::size_t bytes);

  std::filesystem::path path_;
  std::vector<Announced> tensors_;
  std::size_t next_ = 0;
  std::uint64_t in_tensor_ = 0;  // bytes of the next tensor that are written
  std::uint64_t written_ = 0;
  StreamHash hash_;
  FileWriter file_;
};

// How the tensors of a model are divided into files: stem.safetensors, or
// stem-0000i-of-0000n.safetensors and an index. Every file has at most max_bytes of data, unless
// one tensor is larger.
struct SafetensorsFiles {
  struct File {
    std::string name;
    std::vector<SafetensorsWriter::Announced> tensors;
  };
  std::vector<File> files;
  std::string index_name, index;  // the index file and its content; empty with one file
};
SafetensorsFiles divide_into_files(const std::string& stem,
                                   const std::vector<SafetensorsWriter::Announced>& tensors,
                                   std::uint64_t max_bytes);

}  // namespace kintsugi
