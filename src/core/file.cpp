#include "core/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/output_file.h"

namespace kintsugi {
namespace {

// A fixed table, since a signal handler reads it. It has more slots than the system allows mappings
// per process by default (vm.max_map_count). A mapping without a slot is not guarded.
constexpr int kSlots = 1 << 16;
struct Slot {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // begin 0: free
  std::atomic<bool> cut{false};
};
std::array<Slot, kSlots> slots;
std::atomic<int> used_slots{0};  // highest slot ever used, plus one

std::mutex mutex;             // guards free_slots and previous
std::vector<int> free_slots;  // below used_slots
struct sigaction previous {};
std::atomic<bool> passing_on{false};

// Maps zeros from the page of `address` to the end of its mapping. Async-signal-safe.
bool cover(std::uintptr_t address) {
  const int count = used_slots.load();
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (int i = 0; i < count; ++i) {
    Slot& slot = slots[i];
    const std::uintptr_t begin = slot.begin.load(), end = slot.end.load();
    if (begin == 0 || address < begin || address >= end) continue;
    slot.cut.store(true);
    const std::uintptr_t from = address / page * page;
    return ::mmap(reinterpret_cast<void*>(from), end - from, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

// The address is in none of our mappings: call the previous handler. A second call from inside it
// is fatal, so that two handlers cannot call each other forever.
void pass_on(int signal, siginfo_t* info, void* context) {
  const bool again = passing_on.exchange(true);
  if (!again && (previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, info, context);
  } else if (!again && previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  passing_on.store(false);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (!cover(reinterpret_cast<std::uintptr_t>(info->si_addr))) pass_on(signal, info, context);
  errno = error;
}

// Called for every mapping, because a library loaded later (MPI's network layer) may have replaced
// our handler.
void install() {
  struct sigaction now {};
  if (::sigaction(SIGBUS, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_bus_error) return;
  previous = now;
  struct sigaction ours {};
  ours.sa_sigaction = &on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

MappingGuard::MappingGuard(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  install();
  if (!free_slots.empty()) {
    slot_ = free_slots.back();
    free_slots.pop_back();
  } else if (used_slots.load() < kSlots) {
    slot_ = used_slots.load();
  } else {
    return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  Slot& slot = slots[slot_];
  slot.cut.store(false);
  slot.end.store(address + bytes);
  slot.begin.store(address);
  if (slot_ == used_slots.load()) used_slots.store(slot_ + 1);
}

MappingGuard::~MappingGuard() {
  if (slot_ < 0) return;
  const std::lock_guard lock(mutex);
  slots[slot_].begin.store(0);
  free_slots.push_back(slot_);
}

MappingGuard::MappingGuard(MappingGuard&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

MappingGuard& MappingGuard::operator=(MappingGuard&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

bool MappingGuard::cut() const {
  return slot_ >= 0 && slots[slot_].cut.load(std::memory_order_relaxed);
}

namespace {

std::string reason() { return std::strerror(errno); }

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

std::string read_text_file(const std::filesystem::path& path) {
  const FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor < 0) user_error("cannot open {}: {}", path.string(), reason());
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) user_error("cannot read {}: {}", path.string(), reason());
  if (S_ISDIR(status.st_mode)) user_error("{} is a directory, a file is needed", path.string());
  // A pipe has no size, and a device may never end.
  constexpr std::size_t kMaxStreamBytes = 64 << 20, kBlock = 1 << 16;
  const bool file = S_ISREG(status.st_mode);
  std::string text;
  if (file) text.reserve(static_cast<std::size_t>(status.st_size) + kBlock);
  for (std::size_t used = 0;;) {
    text.resize(used + kBlock);
    const ssize_t bytes = ::read(descriptor, text.data() + used, kBlock);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) user_error("cannot read {}: {}", path.string(), reason());
    used += static_cast<std::size_t>(bytes);
    if (bytes == 0) {
      text.resize(used);
      return text;
    }
    if (!file && used > kMaxStreamBytes)
      user_error(
          "{} is longer than {} MiB, the limit for text from a pipe or device: is it the "
          "right file?",
          path.string(), kMaxStreamBytes >> 20);
  }
}

bool is_stream(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored).type();
  return kind == std::filesystem::file_type::fifo || kind == std::filesystem::file_type::socket ||
         kind == std::filesystem::file_type::character;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           OnDisk on_disk) {
  NewFile file(path);
  file.write(content.data(), content.size());
  file.publish({}, on_disk);
}

void append_to_file(const std::filesystem::path& path, std::string_view text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) failure("cannot open {}: {}", path.string(), reason());
  const off_t before = ::lseek(file, 0, SEEK_END);
  int problem = 0;
  while (!text.empty() && problem == 0) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written >= 0)
      text.remove_prefix(static_cast<std::size_t>(written));
    else if (errno != EINTR)
      problem = errno;
  }
  if (problem != 0 && before >= 0) (void)!::ftruncate(file, before);
  if (::close(file) != 0 && problem == 0) problem = errno;
  if (problem != 0) failure("cannot write {}: {}", path.string(), std::strerror(problem));
}

void drop_partial_line(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file < 0 && errno == ENOENT) return;
  const off_t size = file < 0 ? -1 : ::lseek(file, 0, SEEK_END);
  if (size < 0) failure("cannot open {}: {}", path.string(), reason());
  constexpr off_t kBlock = 4096;
  off_t whole = size;  // the end of the last complete line is at or before it
  for (char block[kBlock]; whole > 0;) {
    const off_t begin = std::max<off_t>(0, whole - kBlock);
    const ssize_t bytes = ::pread(file, block, static_cast<std::size_t>(whole - begin), begin);
    if (bytes != whole - begin) failure("cannot read {}: {}", path.string(), reason());
    const std::size_t end = std::string_view(block, static_cast<std::size_t>(bytes)).rfind('\n');
    whole = end == std::string_view::npos ? begin : begin + static_cast<off_t>(end) + 1;
    if (end != std::string_view::npos) break;
  }
  if (whole < size && ::ftruncate(file, whole) != 0)
    failure("cannot shorten {}: {}", path.string(), reason());
}

FileDescriptor open_regular_file(const std::filesystem::path& path) {
  struct stat status {};
  const auto refuse_others = [&] {
    if (S_ISREG(status.st_mode)) return;
    const char* what = S_ISDIR(status.st_mode)    ? "directory"
                       : S_ISFIFO(status.st_mode) ? "pipe"
                       : S_ISSOCK(status.st_mode) ? "socket"
                                                  : "device";
    user_error("{} is a {}, a file is needed", path.string(), what);
  };
  // Check before opening: opening a pipe waits for its writer, or unblocks it.
  if (::stat(path.c_str(), &status) == 0) refuse_others();
  FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor < 0) user_error("cannot open {}: {}", path.string(), reason());
  if (::fstat(descriptor, &status) != 0) user_error("cannot read {}: {}", path.string(), reason());
  refuse_others();
  return descriptor;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const FileDescriptor descriptor = open_regular_file(path);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) user_error("cannot read {}: {}", path.string(), reason());
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
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
        "{} was truncated while it was read: it had {} bytes, now it has {}; restore it and run "
        "again",
        path_.string(), size_, status.st_size);
  failure(
      "{} could not be read to its end: the disk failed, or the file was truncated for a while; "
      "restore "
      "it and run again",
      path_.string());
}

namespace {

// Estimates from a sample of pages whether most of a file is in the page cache. Returns true if the
// system cannot tell.
bool is_cached(int descriptor, std::uint64_t size) {
  constexpr std::uint64_t kSamples = 64;
  const std::uint64_t pages = size / FileReader::kPage;
  if (pages == 0) return true;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return true;
  std::uint64_t cached = 0;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    unsigned char resident = 1;
    const std::uint64_t page = pages * i / kSamples;
    if (::mincore(static_cast<std::byte*>(address) + page * FileReader::kPage, FileReader::kPage,
                  &resident) != 0 ||
        (resident & 1) != 0)
      ++cached;
  }
  ::munmap(address, size);
  return cached * 2 > kSamples;
}

// Reads until `bytes` are read or the file ends. Returns the number of bytes read, or -1.
ssize_t read_fully(int descriptor, std::uint64_t offset, std::size_t bytes, std::byte* to) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        ::pread(descriptor, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
    if (done < bytes && done % FileReader::kPage != 0) break;  // the end of the file, with O_DIRECT
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

FileReader::FileReader(const std::filesystem::path& path)
    : path_(path), descriptor_(open_regular_file(path)) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) user_error("cannot read {}: {}", path.string(), reason());
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (!is_cached(descriptor_, size_))
    direct_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
}

std::byte* FileReader::read(std::uint64_t offset, std::size_t bytes, std::byte* buffer) const {
  const std::size_t before = offset % kPage;
  if (direct_ >= 0) {
    const std::size_t whole = (before + bytes + kPage - 1) / kPage * kPage;
    const ssize_t got = read_fully(direct_, offset - before, whole, buffer);
    if (got >= 0 && static_cast<std::size_t>(got) >= before + bytes) return buffer + before;
  }
  // Also the fallback if O_DIRECT failed above: some file systems refuse it only when reading.
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = read_fully(descriptor_, offset + done, bytes - done, buffer + done);
    if (got < 0) failure("cannot read {}: {}", path_.string(), reason());
    if (got == 0)
      failure(
          "{} was truncated while it was read: it had {} bytes, byte {} is missing; restore it and "
          "run again",
          path_.string(), size_, offset + done);
    done += static_cast<std::size_t>(got);
  }
  return buffer;
}

FileWriter::FileWriter(const std::filesystem::path& path)
    : path_(path),
      descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) failure("cannot create {}: {}", path.string(), reason());
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

void FileWriter::close(OnDisk on_disk) {
  if (on_disk == OnDisk::Now && ::fsync(descriptor_) != 0)
    failure("cannot sync {}: {}", path_.string(), reason());
  if (::close(descriptor_.release()) != 0) failure("cannot close {}: {}", path_.string(), reason());
}

OffsetWriter::OffsetWriter(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) failure("cannot open {}: {}", path.string(), reason());
}

void OffsetWriter::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  constexpr std::size_t kLarge = 1 << 20;
  const off64_t begin = static_cast<off64_t>(offset), length = static_cast<off64_t>(bytes);
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, next, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) failure("cannot write {}: {}", path_.string(), reason());
    next += written;
    offset += static_cast<std::uint64_t>(written);
    bytes -= static_cast<std::size_t>(written);
  }
  // A hint: the disk starts writing now and not only at fsync.
  if (length >= static_cast<off64_t>(kLarge))
    ::sync_file_range(descriptor_, begin, length, SYNC_FILE_RANGE_WRITE);
}

void OffsetWriter::close() {
  if (::fsync(descriptor_) != 0) failure("cannot sync {}: {}", path_.string(), reason());
  if (::close(descriptor_.release()) != 0) failure("cannot close {}: {}", path_.string(), reason());
}

DirectoryLock::DirectoryLock(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) failure("cannot open {}: {}", path.string(), reason());
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK)
    user_error("another process is working in {}: wait for it or choose another directory",
               path.string());
  log_warning("cannot lock {} ({}): a second process in it would not be detected", path.string(),
              reason());
}

void sync_directory(const std::filesystem::path& directory) {
  const FileDescriptor descriptor{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (descriptor < 0 || ::fsync(descriptor) != 0)
    failure("cannot sync directory {}: {}", directory.string(), reason());
}

std::filesystem::path resolve_run_directory(
    const std::filesystem::path& path,
    const std::function<bool(const std::filesystem::path& directory)>& holds) {
  if (holds(path)) return path;
  const std::filesystem::path checkpoints = path / "checkpoints";
  for (const std::filesystem::path& latest : {checkpoints / "latest", path / "latest"})
    if (holds(latest)) return latest;
  std::error_code ignored;
  if (std::filesystem::is_directory(checkpoints, ignored) &&
      !std::filesystem::exists(checkpoints / "latest", ignored))
    user_error("the run in {} has no checkpoint yet: {} is missing", path.string(),
               (checkpoints / "latest").string());
  return path;
}

}  // namespace kintsugi
