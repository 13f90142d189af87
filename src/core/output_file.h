#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
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

// The rule for whatever a command writes under a name that the user gives (docs/outputs.md): what
// exists is refused without --overwrite, and what the command reads is never replaced.
struct OutputRule {
  bool overwrite = false;
  // What the command reads: files, directories with all that is in them, prefixes of token stores.
  // Names that are no files, such as "-" or a preset, are ignored.
  std::vector<std::filesystem::path> inputs = {};
  // Recognizes files that the command wrote itself: these may be replaced also inside an input
  // directory. Without it, none.
  std::function<bool(const std::filesystem::path&)> is_own = {};
  bool is_private = false;  // only its owner may read the file
};

// UserError if `output`, a file or a directory, is one of the inputs, through any links; a
// directory also if it contains one.
void refuse_inputs_as_output(const std::string& option, const std::filesystem::path& output,
                             const OutputRule& rule);

// UserError unless the rule allows to write this file. To be called before the work.
void check_output_file(const std::string& option, const std::filesystem::path& path,
                       const OutputRule& rule);
// Whether a file begins with this text: to recognize one that a command wrote.
bool begins_with(const std::filesystem::path& file, std::string_view text);
// UserError if two options name the same file.
void refuse_same_output(const std::string& first_option, const std::filesystem::path& first,
                        const std::string& second_option, const std::filesystem::path& second);

// A file that a command writes: checked when it is made, opened by begin() or the first write(),
// and in place after publish(), complete or not at all.
class OutputFile {
 public:
  OutputFile(std::string option, std::filesystem::path path, OutputRule rule);

  const std::filesystem::path& path() const { return path_; }
  void begin();
  void write(std::string_view content);
  // Replaces the first bytes. Checks the rule again: a file may have appeared meanwhile.
  void publish(std::string_view first_bytes = {});

 private:
  std::string option_;
  std::filesystem::path path_;
  OutputRule rule_;
  std::optional<NewFile> file_;
};

void write_output_file(const std::string& option, const std::filesystem::path& path,
                       const OutputRule& rule, std::string_view content);

}  // namespace kintsugi
