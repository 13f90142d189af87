#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

// What a command writes into a directory. Only a directory with nothing else in it is replaced or
// removed, so that a mistyped path deletes no other files.
struct DirectoryKind {
  std::string name;                                        // "a model directory"
  std::string required;                                    // a file that each has
  std::function<bool(const std::string& file)> is_member;  // by its name below the directory
};

// A directory that appears complete or not at all. It is filled under the name .NAME.tmp beside its
// target and renamed by publish(). Without publish(), the destructor removes it. What a killed
// process left is removed by the next one with the same target.
class NewDirectory {
 public:
  // UserError if the target exists and may not be replaced, if its parent does not exist, or if
  // another process writes it.
  NewDirectory(const std::filesystem::path& target, bool overwrite, DirectoryKind kind);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // write files here
  void write(const std::string& name, const std::string& content);  // and sync it
  void publish();  // throws and leaves the target unchanged if a rename fails

  // The directories beside `target` that are removed when it is written.
  static std::vector<std::filesystem::path> temporaries(const std::filesystem::path& target);

 private:
  void replace_target();

  std::filesystem::path target_, temporary_, old_;
  bool overwrite_;
  DirectoryKind kind_;
  std::unique_ptr<DirectoryLock> lock_;  // set if temporary_ is ours to remove
};

}  // namespace kintsugi
