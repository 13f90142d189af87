#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kintsugi {

// If another process truncates a mapped file, or its disk fails, reading the mapping raises SIGBUS.
// In a guarded mapping the signal is caught: the rest of the mapping reads as zeros from then on
// and cut() returns true. Check cut() after each copy out of the mapping.
class MappingGuard {
 public:
  MappingGuard() = default;  // guards nothing
  MappingGuard(const void* begin, std::size_t bytes);
  ~MappingGuard();  // must run before the file is unmapped
  MappingGuard(MappingGuard&& other) noexcept;
  MappingGuard& operator=(MappingGuard&& other) noexcept;
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  bool cut() const;

 private:
  int slot_ = -1;
};

// All of these throw UserError if a file cannot be read and Failure if a write fails (disk full,
// read-only, quota). The message has the path and the system's reason.

// Owns an open file; -1: none.
class FileDescriptor {
 public:
  explicit FileDescriptor(int number = -1) : number_(number) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  operator int() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

std::string read_text_file(const std::filesystem::path& path);  // or a pipe, to its end
// Returns whether the path can be read only once and by one process: a pipe, a socket, a terminal.
bool is_stream(const std::filesystem::path& path);

// When written data must be on the disk. Later: when the system writes it, which is enough for
// files that are replaced every few seconds. A sync may take as long as a step while a checkpoint
// is written to the same disk.
enum class OnDisk : std::uint8_t { Now, Later };

// Writes a temporary file next to the target, syncs and renames it: readers see the old content or
// the new, never a partial file. With OnDisk::Later that holds unless the machine crashes.
void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           OnDisk on_disk = OnDisk::Now);

// Appends the whole text or nothing, even if the disk is full: a partial line would make a file of
// lines unreadable.
void append_to_file(const std::filesystem::path& path, std::string_view text);
// Removes an incomplete last line, which a crash has left. Does nothing if there is no such file.
void drop_partial_line(const std::filesystem::path& path);

// Opens a file for reading. Never blocks: throws UserError for a pipe, a device, a socket or a
// directory.
FileDescriptor open_regular_file(const std::filesystem::path& path);

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
  // Call it after copying from bytes(). Throws Failure if the file was truncated since it was
  // opened or could not be read.
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

// A file that several threads read at once in large blocks. A file that is not in the page cache is
// read with O_DIRECT if the file system supports it.
class FileReader {
 public:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kSlack = 2 * kPage;

  explicit FileReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  // Reads bytes [offset, offset + bytes) and returns their address inside `buffer`, which is
  // page-aligned and has room for kSlack more bytes. Throws Failure if the file ends earlier.
  std::byte* read(std::uint64_t offset, std::size_t bytes, std::byte* buffer) const;

 private:
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  FileDescriptor descriptor_;
  FileDescriptor direct_;  // opened with O_DIRECT; -1: not used
};

// Writes a file sequentially. Data is on disk only after close(). A writer that is destroyed before
// leaves an incomplete file; callers therefore write to temporary files or directories.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);

  void write(const void* data, std::size_t bytes);
  void close(OnDisk on_disk = OnDisk::Now);  // fsync and close; throws when either fails

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
};

// Writes to a file of known size that several processes fill, each its own byte ranges.
class OffsetWriter {
 public:
  explicit OffsetWriter(const std::filesystem::path& path);  // the file must exist

  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);  // thread-safe
  void close();  // fsync and close; throws when either fails

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
};

// Locks a directory for this process; the system releases the lock when the process dies. On a file
// system without locks it only logs a warning.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& path);  // UserError if it is locked already

 private:
  FileDescriptor descriptor_;
};

// Makes renames and new entries of a directory durable.
void sync_directory(const std::filesystem::path& directory);

// Where a model, an adapter or a tokenizer is expected, a run directory stands for its latest
// checkpoint. Returns `path` itself if it `holds` what is looked for; for a run directory or its
// folder of checkpoints, the latest checkpoint; any other path unchanged. UserError for a run
// without a checkpoint.
std::filesystem::path resolve_run_directory(
    const std::filesystem::path& path,
    const std::function<bool(const std::filesystem::path& directory)>& holds);

}  // namespace kintsugi
