#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "core/file.h"

namespace kintsugi {

// A file that appears complete or not at all: it is written under the name NAME.tmp beside its
// target and renamed by publish(). Without publish(), the destructor removes it.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& target);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, std::size_t bytes) { writer_.write(data, bytes); }
  // Replaces the first bytes, which must have been written.
  void publish(std::string_view first_bytes = {}, OnDisk on_disk = OnDisk::Now);

 private:
  std::filesystem::path target_, temporary_;
  FileWriter writer_;
  bool published_ = false;
};

}  // namespace kintsugi
