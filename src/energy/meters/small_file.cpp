#include "energy/meters/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr std::size_t kLongestFile = 1024;
constexpr std::size_t kMostNames = 10000;

SmallFile read_descriptor(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return {{}, errno};
  if (S_ISDIR(status.st_mode)) return {{}, EISDIR};
  if (!S_ISREG(status.st_mode)) return {{}, EINVAL};
  std::array<char, kLongestFile + 1> buffer;
  const ssize_t bytes = ::read(descriptor, buffer.data(), buffer.size());
  if (bytes < 0) return {{}, errno};
  if (static_cast<std::size_t>(bytes) > kLongestFile) return {{}, EFBIG};
  std::string text(buffer.data(), static_cast<std::size_t>(bytes));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return {std::move(text), 0};
}

}  // namespace

SmallFile read_small_file(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return {{}, errno};
  SmallFile file = read_descriptor(descriptor);
  ::close(descriptor);
  return file;
}

std::string why_unreadable(const std::filesystem::path& path, int error) {
  std::string reason = error == EINVAL  ? "it is no regular file"
                       : error == EFBIG ? "it is too long for a value"
                                        : std::strerror(error);
  if (error != EINVAL && error != EFBIG)
    reason.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(reason.front())));
  return fmt::format("{}: {}", path.string(), reason);
}

std::string small_text(const std::filesystem::path& path) {
  SmallFile file = read_small_file(path);
  if (file.error != 0) failure("{}", why_unreadable(path, file.error));
  return std::move(file.text);
}

double small_number(const std::filesystem::path& path) {
  const std::string text = small_text(path);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < 0)
    failure("{}: '{}' is no number", path.string(), text.substr(0, 40));
  return value;
}

std::optional<std::int64_t> parse_whole(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.front() == '-' || error != std::errc() ||
      end != text.data() + text.size())
    return {};
  return value;
}

std::optional<std::int64_t> number_in(std::string_view name, std::string_view before,
                                      std::string_view after) {
  if (name.size() < before.size() + after.size() || !name.starts_with(before) ||
      !name.ends_with(after))
    return {};
  return parse_whole(name.substr(before.size(), name.size() - before.size() - after.size()));
}

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end;
       !error && entry != end && names.size() < kMostNames; entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace kintsugi
