#include "energy/power/power_control.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>

#include "core/log.h"

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

constexpr const char* kRemedy =
    "ask Slurm for it (srun --gpu-freq), use EAR, or ask the administrator of the machine";

[[noreturn]] void refused(const GpuControl& gpu, const std::string& what, const std::string& why) {
  throw ControlRefused(fmt::format("cannot set {} of {}: {}; {}", what, gpu.name(), why, kRemedy));
}

// A file of this node that exists while a GPU has a power limit of ours: if the process is killed,
// the next one restores the former limit. Watts.
struct PowerRecord {
  double former_w = 0;
  double present_w = 0, next_w = 0;  // before and after the last change
};

// Empty if there is none, or if the file is not a record that this user wrote.
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

// Returns the reason if it could not be written, otherwise "". Never follows a link.
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

// The limit before that of a process that was killed; empty: the present limit is not ours.
std::optional<double> left_behind(const GpuControl& gpu, const std::filesystem::path& file) {
  const auto record = read_power_record(file);
  const auto limit = gpu.power_limit_w();
  const auto range = gpu.power_range_w();
  if (!record || !limit || !range || record->former_w < range->low ||
      record->former_w > range->high)
    return {};
  const auto is = [&](double watts) { return std::abs(*limit - watts) < 0.5; };
  if (is(record->former_w) || !(is(record->present_w) || is(record->next_w))) return {};
  log_note("energy: the power limit {:g} W of {} is of a process that was killed; it was {:g} W",
           *limit, gpu.name(), record->former_w);
  return record->former_w;
}

}  // namespace

std::filesystem::path power_record_file(const std::filesystem::path& root, const std::string& pci) {
  return root / "tmp" / fmt::format("kintsugi-power-{}-{}", ::geteuid(), pci);
}

std::string GpuControl::lock_clock(int) { return "its driver cannot lock the clock"; }
std::string GpuControl::unlock_clock() { return ""; }

PowerControl::PowerControl(const MeterSearch& search) {
  if (search.without_gpus()) {
    problem_ = kNoGpuInUse;
    return;
  }
  for (const auto controls : {nvml_controls, amd_controls}) {
    try {
      for (auto& gpu : controls(search)) {
        const std::filesystem::path record = power_record_file(search.root, gpu->pci());
        const std::optional<double> former_w = left_behind(*gpu, record);
        gpus_.push_back({.gpu = std::move(gpu), .record = record, .former_w = former_w});
      }
    } catch (const Failure& error) {
      problem_ += (problem_.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (!gpus_.empty()) problem_ = "";  // a node has GPUs of one maker
}

PowerControl::~PowerControl() {
  const std::string problem = restore();
  if (!problem.empty()) log_warning("energy: {}", problem);
}

std::optional<double> PowerControl::power_limit_w() const {
  std::optional<double> lowest;
  for (const Held& held : gpus_)
    if (const auto limit = held.gpu->power_limit_w())
      lowest = std::min(lowest.value_or(*limit), *limit);
  return lowest;
}

std::optional<ControlRange> PowerControl::power_range_w() const {
  std::optional<ControlRange> common;
  for (const Held& held : gpus_) {
    const auto range = held.gpu->power_range_w();
    if (!range) return std::nullopt;
    if (!common) common = range;
    common->low = std::max(common->low, range->low);
    common->high = std::min(common->high, range->high);
  }
  return common && common->low <= common->high ? common : std::nullopt;
}

std::vector<int> PowerControl::clocks_mhz() const {
  std::vector<int> common;
  for (const Held& held : gpus_) {
    const std::vector<int> clocks = held.gpu->clocks_mhz();
    if (&held == &gpus_.front()) common = clocks;
    std::erase_if(common, [&](int mhz) { return std::ranges::find(clocks, mhz) == clocks.end(); });
  }
  return common;
}

void PowerControl::need_gpus() const {
  if (gpus_.empty()) throw ControlRefused("cannot set the power of the GPUs: " + problem_);
}

void PowerControl::check_power_limit(double watts) const {
  const auto range = power_range_w();
  if (range && !(watts >= range->low && watts <= range->high))
    user_error("a power limit of {:g} W is not allowed: {} takes {:g} to {:g} W", watts,
               gpus_.front().gpu->name(), range->low, range->high);
}

void PowerControl::check_clock(int mhz) const {
  const std::vector<int> clocks = clocks_mhz();
  if (clocks.empty() || std::ranges::find(clocks, mhz) != clocks.end()) return;
  const auto nearest =
      std::ranges::min_element(clocks, {}, [&](int clock) { return std::abs(clock - mhz); });
  user_error("a clock of {} MHz is not supported: {} takes {} to {} MHz, for example {}", mhz,
             gpus_.front().gpu->name(), clocks.back(), clocks.front(), *nearest);
}

void PowerControl::set_power_limit(double watts) {
  need_gpus();
  check_power_limit(watts);
  if (!power_range_w())
    refused(*gpus_.front().gpu, "the power limit", "its driver reports no range");
  const std::lock_guard lock(mutex_);
  for (Held& held : gpus_) {
    const std::string why = set_limit(held, watts);
    if (why.empty()) continue;
    restore_all();
    refused(*held.gpu, fmt::format("the power limit {:g} W", watts), why);
  }
}

// The record is written before the change, so that there is no moment without it.
std::string PowerControl::set_limit(Held& held, double watts) {
  const std::optional<double> present_w = held.gpu->power_limit_w();
  if (!held.former_w) held.former_w = present_w;
  if (present_w) {
    const std::string why = write_power_record(
        held.record, {.former_w = *held.former_w, .present_w = *present_w, .next_w = watts});
    if (!why.empty() && &held == &gpus_.front())
      log_note("energy: {}: a power limit stays if this process is killed", why);
  }
  return held.gpu->set_power_limit(watts);
}

void PowerControl::lock_clock(int mhz) {
  need_gpus();
  check_clock(mhz);
  if (clocks_mhz().empty())
    refused(*gpus_.front().gpu, "the clock", "its driver reports no clocks");
  const std::lock_guard lock(mutex_);
  for (Held& held : gpus_) {
    const std::string why = held.gpu->lock_clock(mhz);
    held.locked = held.locked || why.empty();
    if (why.empty()) continue;
    restore_all();
    refused(*held.gpu, fmt::format("the clock {} MHz", mhz), why);
  }
}

std::string PowerControl::restore() {
  const std::lock_guard lock(mutex_);
  return restore_all();
}

std::string PowerControl::restore_all() {
  std::string problems;
  const auto note = [&](const GpuControl& gpu, const std::string& what, const std::string& why) {
    if (!why.empty())
      problems += fmt::format("{}{} of {} is not restored: {}", problems.empty() ? "" : "; ", what,
                              gpu.name(), why);
    return why.empty();
  };
  for (Held& held : gpus_) {
    if (held.former_w && (held.gpu->power_limit_w() == held.former_w ||
                          note(*held.gpu, fmt::format("the power limit {:g} W", *held.former_w),
                               held.gpu->set_power_limit(*held.former_w))))
      ::unlink(held.record.c_str());
    if (held.locked) note(*held.gpu, "the clock", held.gpu->unlock_clock());
    held.former_w.reset();
    held.locked = false;
  }
  return problems;
}

}  // namespace kintsugi
