#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/hash.h"

namespace kintsugi {

// A file that a job writes sequentially and continues after it was killed, with a running hash of
// its content.
class AppendFile {
 public:
  // Continues behind the first `size` bytes; the rest is removed. UserError if there are fewer.
  AppendFile(const std::filesystem::path& path, std::uint64_t size);

  void write(const void* data, std::size_t bytes);
  void flush();
  void sync();  // to the disk
  std::uint64_t size() const { return size_; }
  std::string hash() const { return hex64(hash_.digest()); }

 private:
  void truncate();
  void write_through(const char* next, std::size_t bytes);

  std::filesystem::path path_;
  std::uint64_t size_;
  FileDescriptor descriptor_;
  std::vector<char> buffer_;
  StreamHash hash_;
};

}  // namespace kintsugi
