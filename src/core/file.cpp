#include "core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

std::string reason() { return std::strerror(errno); }

// Closes on every path out, including exceptions.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

int open_to_read(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) user_error("cannot open {}: {}", path.string(), reason());
  return descriptor;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path) {
  const Descriptor descriptor{open_to_read(path)};
  struct stat status {};
  if (::fstat(descriptor.value, &status) != 0)
    user_error("cannot read {}: {}", path.string(), reason());
  if (S_ISDIR(status.st_mode)) user_error("{} is a directory, a file is needed", path.string());
  // A pipe has no size, and a device may never end.
  constexpr std::size_t kMostOfAStream = 64 << 20, kPiece = 1 << 16;
  const bool file = S_ISREG(status.st_mode);
  std::string text;
  if (file) text.reserve(static_cast<std::size_t>(status.st_size) + kPiece);
  for (std::size_t used = 0;;) {
    text.resize(used + kPiece);
    const ssize_t bytes = ::read(descriptor.value, text.data() + used, kPiece);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) user_error("cannot read {}: {}", path.string(), reason());
    used += static_cast<std::size_t>(bytes);
    if (bytes == 0) {
      text.resize(used);
      return text;
    }
    if (!file && used > kMostOfAStream)
      user_error("{} gives more than {} MiB: no text file of ours is that long", path.string(),
                 kMostOfAStream >> 20);
  }
}

bool is_stream(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored).type();
  return kind == std::filesystem::file_type::fifo || kind == std::filesystem::file_type::socket ||
         kind == std::filesystem::file_type::character;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  try {
    FileWriter writer(temporary);
    writer.write(content.data(), content.size());
    writer.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0)
      failure("cannot rename {} to {}: {}", temporary.string(), path.string(), reason());
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

int open_regular_file(const std::filesystem::path& path) {
  struct stat status {};
  const auto refuse_others = [&] {
    if (S_ISREG(status.st_mode)) return;
    const char* what = S_ISDIR(status.st_mode)    ? "directory"
                       : S_ISFIFO(status.st_mode) ? "pipe"
                       : S_ISSOCK(status.st_mode) ? "socket"
                                                  : "device";
    user_error("{} is a {}, a file is needed", path.string(), what);
  };
  // Asked before it is opened: opening a pipe waits for its writer, or sets it off.
  if (::stat(path.c_str(), &status) == 0) refuse_others();
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) user_error("cannot open {}: {}", path.string(), reason());
  try {
    if (::fstat(descriptor, &status) != 0)
      user_error("cannot read {}: {}", path.string(), reason());
    refuse_others();
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  return descriptor;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor descriptor{open_regular_file(path)};
  struct stat status {};
  if (::fstat(descriptor.value, &status) != 0)
    user_error("cannot read {}: {}", path.string(), reason());
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.value, 0);
  if (address == MAP_FAILED) user_error("cannot map {}: {}", path.string(), reason());
  data_ = static_cast<const std::byte*>(address);
  guard_ = MappingGuard(data_, size_);
}

MappedFile::~MappedFile() {
  guard_ = {};
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(guard_, other.guard_);
  return *this;
}

void MappedFile::complain() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) == 0 && static_cast<std::size_t>(status.st_size) < size_)
    failure(
        "{} was shortened while it was read: it had {} bytes, now it has {}; restore it and run "
        "again",
        path_.string(), size_, status.st_size);
  failure(
      "{} could not be read to its end: its disk failed, or it was shortened for a while; restore "
      "it and run again",
      path_.string());
}

FileWriter::FileWriter(const std::filesystem::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) failure("cannot create {}: {}", path.string(), reason());
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) failure("cannot write {}: {}", path_.string(), reason());
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void FileWriter::close() {
  if (::fsync(descriptor_) != 0) failure("cannot sync {}: {}", path_.string(), reason());
  if (::close(std::exchange(descriptor_, -1)) != 0)
    failure("cannot close {}: {}", path_.string(), reason());
}

PlacedWriter::PlacedWriter(const std::filesystem::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) failure("cannot open {}: {}", path.string(), reason());
}

PlacedWriter::~PlacedWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void PlacedWriter::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, next, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) failure("cannot write {}: {}", path_.string(), reason());
    next += written;
    offset += static_cast<std::uint64_t>(written);
    bytes -= static_cast<std::size_t>(written);
  }
}

void PlacedWriter::close() {
  if (::fsync(descriptor_) != 0) failure("cannot sync {}: {}", path_.string(), reason());
  if (::close(std::exchange(descriptor_, -1)) != 0)
    failure("cannot close {}: {}", path_.string(), reason());
}

DirectoryLock::DirectoryLock(const std::filesystem::path& path) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) failure("cannot open {}: {}", path.string(), reason());
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    ::close(descriptor_);
    user_error("another process is working in {}: wait for it or choose another directory",
               path.string());
  }
  log_warning("cannot lock {} ({}): a second process in it would go unnoticed", path.string(),
              reason());
}

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

void sync_directory(const std::filesystem::path& directory) {
  const Descriptor descriptor{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (descriptor.value < 0 || ::fsync(descriptor.value) != 0)
    failure("cannot sync directory {}: {}", directory.string(), reason());
}

}  // namespace kintsugi
