#include "report/runs/run_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/json_members.h"
#include "core/units.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

FileStamp stamp_from(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = static_cast<std::uint64_t>(status.st_size),
          .changed_ns = status.st_mtim.tv_sec * 1'000'000'000ll + status.st_mtim.tv_nsec};
}

std::string kind_of_file(mode_t mode) {
  return S_ISDIR(mode)    ? "is a directory"
         : S_ISLNK(mode)  ? "is a symbolic link"
         : S_ISFIFO(mode) ? "is a pipe"
         : S_ISSOCK(mode) ? "is a socket"
                          : "is a device";
}

// The directory that holds a file, opened without following links.
class FolderOf {
 public:
  explicit FolderOf(const fs::path& path) : name_(path.filename().string()) {
    folder_ = ::open(path.is_absolute() ? "/" : ".", kFlags);
    for (const fs::path& part : path.relative_path().parent_path()) {
      const int inner = ::openat(folder_, part.c_str(), kFlags);
      const int error = errno;
      const bool is_link = inner < 0 && is_a_link(part);
      if (folder_ >= 0) ::close(folder_);
      folder_ = inner;
      errno = is_link ? ELOOP : error;
      if (folder_ < 0) return;
    }
  }
  ~FolderOf() {
    if (folder_ >= 0) ::close(folder_);
  }
  FolderOf(const FolderOf&) = delete;
  FolderOf& operator=(const FolderOf&) = delete;

  bool look(struct stat& status) const {
    return folder_ >= 0 && ::fstatat(folder_, name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  }
  int open(int flags) const {
    return ::openat(folder_, name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | flags);
  }

 private:
  static constexpr int kFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

  bool is_a_link(const fs::path& part) const {
    struct stat status {};
    return ::fstatat(folder_, part.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISLNK(status.st_mode);
  }

  std::string name_;
  int folder_ = -1;
};

// Empty if there is no such file.
std::string last_problem() {
  if (errno == ENOENT) return "";
  return errno == ELOOP ? "is below a symbolic link" : std::strerror(errno);
}

}  // namespace

std::optional<FileStamp> stamp_of(const fs::path& path) {
  struct stat status {};
  if (!FolderOf(path).look(status) || !S_ISREG(status.st_mode)) return {};
  return stamp_from(status);
}

std::vector<std::string> sorted_names(const fs::path& directory) {
  std::vector<std::string> names;
  const int descriptor = FolderOf(directory).open(O_DIRECTORY);
  DIR* const stream = descriptor < 0 ? nullptr : ::fdopendir(descriptor);
  if (stream == nullptr) {
    if (descriptor >= 0) ::close(descriptor);
    return names;
  }
  while (const dirent* entry = ::readdir(stream)) names.emplace_back(entry->d_name);
  ::closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

fs::path resolved(const fs::path& given) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(given, error);
  return error ? given : path;
}

RunFile::RunFile(const fs::path& path) {
  struct stat status {};
  const FolderOf folder(path);
  // Look before opening: opening a pipe unblocks its writer, and a device may act.
  if (!folder.look(status)) {
    problem_ = last_problem();
    return;
  }
  if (!S_ISREG(status.st_mode)) {
    problem_ = kind_of_file(status.st_mode);
    return;
  }
  descriptor_ = folder.open(0);
  if (descriptor_ < 0) {
    problem_ = last_problem();
    return;
  }
  if (::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
    stamp_ = stamp_from(status);
    return;
  }
  problem_ = kind_of_file(status.st_mode);
  ::close(descriptor_);
  descriptor_ = -1;
}

RunFile::~RunFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void RunFile::read(std::uint64_t offset, std::size_t size, std::string& text) const {
  text.resize(size);
  std::size_t used = 0;
  while (used < size) {
    const ssize_t bytes =
        ::pread(descriptor_, text.data() + used, size - used, static_cast<off_t>(offset + used));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    used += static_cast<std::size_t>(bytes);
  }
  text.resize(used);
}

FileText read_run_file(const std::filesystem::path& path, std::size_t most_bytes) {
  const RunFile file(path);
  if (!file.is_open()) return {.problem = file.problem()};
  FileText result{.stamp = file.stamp()};
  if (file.stamp().size > most_bytes) {
    result.problem =
        fmt::format("is larger than {}", format_bytes(static_cast<double>(most_bytes)));
    return result;
  }
  file.read(0, file.stamp().size, result.text);
  return result;
}

FileTail read_tail(const std::filesystem::path& path, std::size_t bytes) {
  const RunFile file(path);
  if (!file.is_open()) return {.problem = file.problem()};
  FileTail tail{.stamp = file.stamp()};
  const std::uint64_t size = file.stamp().size;
  const std::uint64_t begin = size > bytes ? size - bytes : 0;
  std::string text;
  file.read(begin, static_cast<std::size_t>(size - begin), text);
  tail.bytes = text.size();
  const std::size_t last = text.rfind('\n');
  tail.end = last == text.npos ? begin : begin + last + 1;
  // What is before the first line end belongs to a line that begins earlier.
  const std::size_t first = begin == 0 ? 0 : std::min(text.size(), text.find('\n')) + 1;
  if (first < text.size()) tail.lines = complete_lines(text.substr(first));
  return tail;
}

std::vector<std::string> complete_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
    lines.push_back(text.substr(at, end - at));
  return lines;
}

nlohmann::ordered_json read_json_object(const std::filesystem::path& file, std::size_t most_bytes) {
  auto json = parse_untrusted_json(read_run_file(file, most_bytes).text);
  return json && json->is_object() ? std::move(*json) : nlohmann::ordered_json(nullptr);
}

}  // namespace kintsugi
