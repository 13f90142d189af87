#include "data/stores/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

}  // namespace

AppendFile::AppendFile(const std::filesystem::path& path, std::uint64_t size)
    : path_(path),
      size_(size),
      descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) failure("cannot create {}: {}", path.string(), std::strerror(errno));
  buffer_.reserve(kBufferBytes);
  truncate();
}

void AppendFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  hash_.update(data, bytes);
  size_ += bytes;
  if (buffer_.size() + bytes > kBufferBytes) flush();
  if (bytes > kBufferBytes)
    write_through(from, bytes);
  else
    buffer_.insert(buffer_.end(), from, from + bytes);
}

void AppendFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AppendFile::sync() {
  flush();
  if (::fdatasync(descriptor_) != 0)
    failure("cannot sync {}: {}", path_.string(), std::strerror(errno));
}

// Truncates the file to size_ and hashes the remaining content.
void AppendFile::truncate() {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) < size_)
    user_error(
        "{} is shorter than it was when the job was interrupted: start over with --overwrite",
        path_.string());
  if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0)
    failure("cannot truncate {}: {}", path_.string(), std::strerror(errno));
  std::vector<char> buffer(size_ > 0 ? kBufferBytes : 0);
  for (std::uint64_t done = 0; done < size_;) {
    const std::size_t want = std::min<std::uint64_t>(buffer.size(), size_ - done);
    const ssize_t got = ::read(descriptor_, buffer.data(), want);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) failure("cannot read {}: {}", path_.string(), std::strerror(errno));
    hash_.update(buffer.data(), static_cast<std::size_t>(got));
    done += static_cast<std::uint64_t>(got);
  }
  ::lseek(descriptor_, static_cast<off_t>(size_), SEEK_SET);
}

void AppendFile::write_through(const char* next, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) failure("cannot write {}: {}", path_.string(), std::strerror(errno));
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

}  // namespace kintsugi
