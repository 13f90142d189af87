#include "energy/meters/sysfs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
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

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c); });
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
  const std::optional<double> value = parse_number(text);
  if (!value) failure("{}: '{}' is no number", path.string(), text.substr(0, 40));
  return *value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < 0)
    return {};
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

std::string pci_address(std::string_view text) {
  std::string_view domain = "0000";
  if (std::count(text.begin(), text.end(), ':') == 2) {
    domain = text.substr(0, text.find(':'));
    text.remove_prefix(domain.size() + 1);
    if (domain.size() > 4 && domain.size() <= 8 &&
        domain.find_first_not_of('0') >= domain.size() - 4)
      domain.remove_prefix(domain.size() - 4);
  }
  if (text.size() != 7 || text[2] != ':' || text[5] != '.' || !is_hex(domain, 4) ||
      !is_hex(text.substr(0, 2), 2) || !is_hex(text.substr(3, 2), 2) || !is_hex(text.substr(6), 1))
    return "";
  std::string address = std::string(domain) + ":" + std::string(text);
  for (char& c : address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return address;
}

std::string pci_address(unsigned domain, unsigned bus, unsigned device, unsigned function) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

bool may_be_a_die(const std::filesystem::path& device) {
  const std::string id = read_small_file(device / "device").text;
  return id.empty() || id == "0x7408" || id == "0x740c";
}

int count_gpus(const std::filesystem::path& root) {
  const std::filesystem::path directory = root / "sys/bus/pci/devices";
  int gpus = 0;
  for (const std::string& name : names_in(directory)) {
    const std::string vendor = read_small_file(directory / name / "vendor").text;
    const std::string kind = read_small_file(directory / name / "class").text;
    // Display controllers and processing accelerators.
    if ((vendor == "0x10de" || vendor == "0x1002") &&
        (kind.starts_with("0x03") || kind.starts_with("0x12")))
      ++gpus;
  }
  return gpus;
}

}  // namespace kintsugi
