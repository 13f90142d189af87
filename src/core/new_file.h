#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "core/file.h"

namespace kintsugi {

struct NewFileOptions {
  bool own_temporary = false;  // a name that no other file has, instead of NAME.tmp
  bool is_private = false;     // only its owner may read it
  bool replaces = true;        // false: publish() refuses a target that has appeared meanwhile
};

// A file that appears complete or not at all: it is written under the name NAME.tmp beside its
// target and renamed by publish(). Without publish(), the destructor removes it.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& target, const NewFileOptions& options = {});
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, std::size_t bytes) { writer_.write(data, bytes); }
  // Replaces the first bytes, which must have been written.
  void publish(std::string_view first_bytes = {}, OnDisk on_disk = OnDisk::Now);

 private:
  std::filesystem::path target_;
  NewFileOptions options_;
  std::filesystem::path temporary_;
  FileWriter writer_;
  bool published_ = false;
};

// write_file_atomically() of a file with secrets: only its owner may read it.
void write_private_file(const std::filesystem::path& path, std::string_view content);

// Renames unless `to` exists. Returns 0, or the error: EEXIST. A file system without such a rename
// checks first and then renames.
int rename_to_new_name(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace kintsugi
