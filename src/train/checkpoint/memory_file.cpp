#include "train/checkpoint/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMemoryHeaderBytes = 4096;
// Also the version of the format, and of the order of the parameters (ParameterSet).
constexpr std::uint64_t kMemoryMagic = 0x33594d4547555354;
constexpr std::size_t kFileAlignment = 64;

struct MemoryHeader {
  std::uint64_t magic;  // 0: not valid
  std::uint64_t fingerprint;
  std::int64_t step;
  std::int64_t rank;
  std::uint64_t after;
  std::uint64_t series;
  std::uint64_t text_bytes, data_bytes;
  std::uint64_t content;  // hash of text and data
  std::uint64_t own;      // hash of the fields above
};
static_assert(sizeof(MemoryHeader) <= kMemoryHeaderBytes);

std::size_t file_aligned(std::size_t bytes) {
  return (bytes + kFileAlignment - 1) / kFileAlignment * kFileAlignment;
}

std::uint64_t own_hash(const MemoryHeader& header) {
  return hash64(&header, offsetof(MemoryHeader, own));
}

MemoryHeader header_of(const std::byte* file) {
  MemoryHeader header;
  std::memcpy(&header, file, sizeof(header));
  return header;
}

// Whether it is the header of a file of this size.
bool is_valid_header(const MemoryHeader& header, std::size_t bytes) {
  const std::size_t room = bytes - kMemoryHeaderBytes;
  return header.magic == kMemoryMagic && header.own == own_hash(header) &&
         header.text_bytes <= room && header.data_bytes <= room &&
         file_aligned(header.text_bytes) + header.data_bytes <= room;
}

MemoryFile::Info info_of(const MemoryHeader& header) {
  return {header.fingerprint, header.step, static_cast<std::int32_t>(header.rank), header.after,
          header.series};
}

std::uint64_t content_hash(const std::byte* file, const MemoryHeader& header) {
  const std::byte* const text = file + kMemoryHeaderBytes;
  return hash64(text + file_aligned(header.text_bytes), header.data_bytes,
                hash64(text, header.text_bytes));
}

}  // namespace

std::size_t MemoryFile::bytes_for(std::size_t text, std::size_t data) {
  return kMemoryHeaderBytes + file_aligned(text) + data;
}

std::optional<MemoryFile::Info> MemoryFile::peek(const std::filesystem::path& path,
                                                 std::size_t bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file < 0) return std::nullopt;
  std::array<std::byte, sizeof(MemoryHeader)> start{};
  struct stat status {};
  const bool whole = ::fstat(file, &status) == 0 && status.st_uid == ::getuid() &&
                     static_cast<std::size_t>(status.st_size) == bytes &&
                     bytes > kMemoryHeaderBytes &&
                     ::pread(file, start.data(), start.size(), 0) == ssize_t{sizeof(MemoryHeader)};
  if (!whole) return std::nullopt;
  const MemoryHeader header = header_of(start.data());
  if (!is_valid_header(header, bytes)) return std::nullopt;
  return info_of(header);
}

MemoryFile::MemoryFile(const std::filesystem::path& path, std::size_t bytes) : bytes_(bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file < 0) failure("cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat status {};
  int problem = ::fstat(file, &status) != 0 ? errno : 0;
  if (problem == 0 && status.st_uid != ::getuid()) problem = EPERM;
  if (problem == 0 && static_cast<std::size_t>(status.st_size) != bytes &&
      ::ftruncate(file, 0) != 0)
    problem = errno;
  // Without reserved memory, writing to a full file system would raise SIGBUS.
  if (problem == 0) problem = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  void* const address = problem != 0
                            ? MAP_FAILED
                            : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (problem == 0 && address == MAP_FAILED) problem = errno;
  if (problem != 0) {
    ::unlink(path.c_str());
    failure("cannot reserve memory in {}: {}", path.string(), std::strerror(problem));
  }
  data_ = static_cast<std::byte*>(address);
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryFile::~MemoryFile() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

std::optional<MemoryFile::Info> MemoryFile::info() const {
  const MemoryHeader header = header_of(data_);
  if (!is_valid_header(header, bytes_)) return std::nullopt;
  return info_of(header);
}

void MemoryFile::invalidate() {
  const std::uint64_t invalid = 0;
  std::memcpy(data_ + offsetof(MemoryHeader, magic), &invalid, sizeof(invalid));
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

std::byte* MemoryFile::begin(std::string_view text, std::size_t data) {
  KINTSUGI_CHECK(bytes_for(text.size(), data) <= bytes_, "{} bytes of text and {} of data in {}",
                 text.size(), data, bytes_);
  invalidate();
  MemoryHeader header{};
  header.text_bytes = text.size();
  header.data_bytes = data;
  std::memcpy(data_, &header, sizeof(header));
  std::memcpy(data_ + kMemoryHeaderBytes, text.data(), text.size());
  return data_ + kMemoryHeaderBytes + file_aligned(text.size());
}

void MemoryFile::seal(const Info& info) {
  MemoryHeader header = header_of(data_);
  header.fingerprint = info.fingerprint;
  header.step = info.step;
  header.rank = info.rank;
  header.after = info.after;
  header.series = info.series;
  header.content = content_hash(data_, header);
  header.magic = kMemoryMagic;
  header.own = own_hash(header);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(data_, &header, sizeof(header));
}

std::optional<MemoryContent> checked_content(std::span<const std::byte> file,
                                             const MemoryFile::Info& expected) {
  if (file.size() <= kMemoryHeaderBytes) return std::nullopt;
  const MemoryHeader header = header_of(file.data());
  if (!is_valid_header(header, file.size()) || header.fingerprint != expected.fingerprint ||
      header.step != expected.step || header.rank != expected.rank ||
      header.series != expected.series || header.content != content_hash(file.data(), header))
    return std::nullopt;
  const std::byte* const text = file.data() + kMemoryHeaderBytes;
  return MemoryContent{
      {reinterpret_cast<const char*>(text), static_cast<std::size_t>(header.text_bytes)},
      {text + file_aligned(header.text_bytes), static_cast<std::size_t>(header.data_bytes)}};
}

}  // namespace kintsugi
