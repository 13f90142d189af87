#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/sysfs.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr int kPmAttempts = 5;
constexpr std::int64_t kMostPmModules = 64;

// "2178501771 J 1734094386462336 us"
struct PmValue {
  double value = 0;
  std::optional<double> time_s = {};
};

std::vector<std::string_view> pm_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(" \t\n");
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_of(" \t\n"), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

PmValue pm_value(const fs::path& path, std::string_view unit) {
  const std::string text = small_text(path);
  const std::vector<std::string_view> words = pm_words(text);
  const auto value = words.size() >= 2 && words[1] == unit ? parse_number(words[0]) : std::nullopt;
  if (!value)
    failure("{}: '{}' is not of the form '1234 {} 5678 us'", path.string(), text.substr(0, 60),
            unit);
  PmValue result{.value = *value};
  if (words.size() == 4 && words[3] == "us")
    if (const auto stamp = parse_whole(words[2]))
      result.time_s = static_cast<double>(*stamp) * 1e-6;
  return result;
}

std::optional<std::int64_t> pm_number(const fs::path& path) {
  const std::string text = small_text(path);
  const std::vector<std::string_view> words = pm_words(text);
  const auto number = words.empty() ? std::nullopt : parse_whole(words.front());
  if (!number) failure("{}: '{}' is no number", path.string(), text.substr(0, 40));
  return number;
}

class PmCounter : public Meter {
 public:
  // `prefix`: "", "cpu_", "accel0_".
  PmCounter(MeterIdentity identity, fs::path directory, const std::string& prefix)
      : Meter(std::move(identity)),
        energy_(directory / (prefix + "energy")),
        power_(directory / (prefix + "power")),
        freshness_(directory / "freshness"),
        startup_(directory / "startup"),
        has_power_(read_small_file(power_).error == 0),
        has_freshness_(read_small_file(freshness_).error != ENOENT),
        has_startup_(read_small_file(startup_).error != ENOENT) {}

  // Energy and power are of the same scan if the number of scans is the same before and after.
  MeterReading read() override {
    for (int attempt = 0; attempt < kPmAttempts; ++attempt) {
      MeterReading reading;
      if (has_freshness_) reading.scan = pm_number(freshness_);
      const PmValue energy = pm_value(energy_, "J");
      reading.joules = energy.value;
      reading.time_s = energy.time_s;
      if (has_power_) reading.watts = pm_value(power_, "W").value;
      if (has_startup_) reading.restarts = pm_number(startup_);
      if (!has_freshness_ || pm_number(freshness_) == reading.scan) return reading;
    }
    failure("{} changed during each of {} readings", freshness_.string(), kPmAttempts);
  }

 private:
  fs::path energy_, power_, freshness_, startup_;
  bool has_power_, has_freshness_, has_startup_;
};

void add_pm_counter(const fs::path& directory, const std::string& prefix, const std::string& scope,
                    EnergyLevel level, FoundMeters& found) {
  MeterIdentity identity{.source = "pm_counters",
                         .scope = scope,
                         .level = level,
                         .detail = (directory / (prefix + "energy")).string()};
  add_readable(std::make_unique<PmCounter>(std::move(identity), directory, prefix), found);
}

}  // namespace

void add_pm_counters(const MeterSearch& search, FoundMeters& found) {
  const fs::path directory = search.root / "sys/cray/pm_counters";
  const std::vector<std::string> names = names_in(directory);
  if (names.empty()) {
    const int error = ::access(directory.c_str(), R_OK | X_OK) == 0 ? 0 : errno;
    found.missing.push_back(
        {"pm_counters", error == EACCES ? why_unreadable(directory, error)
                                        : fmt::format("{} does not exist: no HPE Cray EX node",
                                                      directory.string())});
    return;
  }
  add_pm_counter(directory, "", "node", EnergyLevel::Node, found);
  add_pm_counter(directory, "cpu_", "cpu", EnergyLevel::Cpu, found);
  add_pm_counter(directory, "memory_", "memory", EnergyLevel::Memory, found);
  std::map<std::int64_t, std::string> modules;  // number -> prefix
  for (const std::string& name : names)
    for (const char* ending : {"_energy", "_power"}) {
      const auto number = name == std::string("accel") + ending ? std::optional<std::int64_t>(0)
                                                                : number_in(name, "accel", ending);
      if (number && *number < kMostPmModules)
        modules.emplace(*number, name.substr(0, name.size() - std::string(ending).size() + 1));
    }
  const std::int64_t count = modules.empty() ? 0 : modules.rbegin()->first + 1;
  for (std::int64_t i = 0; i < count; ++i)  // also those without files: they are missing
    add_pm_counter(directory, modules.contains(i) ? modules[i] : fmt::format("accel{}_", i),
                   fmt::format("gpu{}", i), EnergyLevel::Gpu, found);
}

}  // namespace kintsugi
