#include "energy/power_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>

namespace kintsugi {
namespace {

constexpr double kMostOfGpu_w = 1e5;

// A file descriptor that is closed at the end; -1: none.
class RecordFile {
 public:
  RecordFile(const std::filesystem::path& file, int flags)
      : descriptor_(::open(file.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600)) {}
  ~RecordFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  int get() const { return descriptor_; }
  // Everyone may write to /tmp: only a plain file of this user is ours.
  bool is_ours() const {
    struct stat state {};
    return descriptor_ >= 0 && ::fstat(descriptor_, &state) == 0 && S_ISREG(state.st_mode) &&
           state.st_uid == ::geteuid() && state.st_nlink == 1;
  }

 private:
  int descriptor_;
};

}  // namespace

std::filesystem::path power_record_file(const std::filesystem::path& root, const std::string& pci) {
  return root / "tmp" / fmt::format("kintsugi-power-{}-{}", ::geteuid(), pci);
}

std::optional<PowerRecord> read_power_record(const std::filesystem::path& path) {
  const RecordFile file(path, O_RDONLY);
  if (!file.is_ours()) return {};
  std::array<char, 128> text{};
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size <= 0 || text[static_cast<std::size_t>(size) - 1] != '\n') return {};
  std::istringstream words(std::string(text.data(), static_cast<std::size_t>(size)));
  PowerRecord record;
  std::string more;
  if (!(words >> record.former_w >> record.present_w >> record.next_w) || words >> more) return {};
  for (const double watts : {record.former_w, record.present_w, record.next_w})
    if (!(watts > 0 && watts <= kMostOfGpu_w)) return {};
  return record;
}

std::string write_power_record(const std::filesystem::path& path, const PowerRecord& record) {
  const RecordFile file(path, O_WRONLY | O_CREAT);
  if (file.get() < 0) return fmt::format("{}: {}", path.string(), std::strerror(errno));
  if (!file.is_ours()) return fmt::format("{}: not a file of this user", path.string());
  const std::string text =
      fmt::format("{} {} {}\n", record.former_w, record.present_w, record.next_w);
  if (::ftruncate(file.get(), 0) != 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return fmt::format("{}: {}", path.string(), std::strerror(errno));
  return "";
}

void remove_power_record(const std::filesystem::path& file) { ::unlink(file.c_str()); }

}  // namespace kintsugi
