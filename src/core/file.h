#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/mapping_guard.h"

namespace kintsugi {

// All of these throw UserError when the named file cannot be read (it is the user's to give) and
// Failure when a write does not succeed (disk full, read-only, quota), always with the path and the
// system's reason.

std::string read_text_file(const std::filesystem::path& path);  // or a pipe, until it ends
// Something that can be read only once, and by one process: a pipe, a terminal, /dev/stdin.
bool is_stream(const std::filesystem::path& path);

// Writes beside the target, syncs, renames: a reader sees the old content or the new, never a part.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// The file opened for reading, without waiting: a pipe, a device, a socket or a directory is a
// UserError. The caller closes it.
int open_regular_file(const std::filesystem::path& path);

// A read-only memory map of a regular file. An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // After something was copied out of bytes(): Failure if the file has been shortened since it was
  // opened, or could not be read.
  void check_intact() const {
    if (guard_.cut()) [[unlikely]]
      complain();
  }

 private:
  [[noreturn]] void complain() const;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  MappingGuard guard_;
};

// A file being written front to back. Data is on disk only after close(); an abandoned writer
// leaves its file to the caller, who works inside a temporary directory.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, std::size_t bytes);
  void close();  // fsync and close; throws when either fails

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// A file of known size that several processes fill, each its own places.
class PlacedWriter {
 public:
  explicit PlacedWriter(const std::filesystem::path& path);  // which exists
  ~PlacedWriter();
  PlacedWriter(const PlacedWriter&) = delete;
  PlacedWriter& operator=(const PlacedWriter&) = delete;

  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  void close();  // fsync and close; throws when either fails

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// Holds a directory for this process; the system lets go of it when the process dies. File systems
// that know no locks are used without, with a warning.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& path);  // UserError if another process has it
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int descriptor_ = -1;
};

// Makes renames and new entries of a directory durable.
void sync_directory(const std::filesystem::path& directory);

}  // namespace kintsugi
