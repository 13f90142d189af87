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

// The sum of files in microjoules (a counter) or microwatts. The sum of counters of the same range
// decreases by the range when one of them wraps around, so that it can be followed like one
// counter.
class FilesMeter : public Meter {
 public:
  FilesMeter(MeterIdentity identity, std::vector<fs::path> files)
      : Meter(std::move(identity)), files_(std::move(files)) {}

  MeterReading read() override {
    double micro = 0;
    for (const fs::path& file : files_) micro += small_number(file);
    if (identity().kind == MeterKind::Counter) return {.joules = micro * 1e-6};
    return {.watts = micro * 1e-6};
  }

 private:
  std::vector<fs::path> files_;
};

bool is_rapl_zone(const std::string& name) {
  return name.starts_with("intel-rapl:") &&
         name.find_first_not_of("0123456789:", std::string("intel-rapl:").size()) ==
             std::string::npos;
}

// By name. Sub-zones are listed beside their zones, inside them, or both.
std::map<std::string, fs::path> rapl_zones(const fs::path& directory) {
  std::map<std::string, fs::path> zones;
  for (const std::string& name : names_in(directory)) {
    if (!is_rapl_zone(name)) continue;
    zones.emplace(name, directory / name);
    for (const std::string& inner : names_in(directory / name))
      if (is_rapl_zone(inner)) zones.emplace(inner, directory / name / inner);
  }
  return zones;
}

// N of "package-N" and "package-N-die-M".
std::optional<std::int64_t> rapl_package(std::string_view name) {
  constexpr std::string_view kDie = "-die-";
  if (const std::size_t die = name.find(kDie); die != std::string_view::npos) {
    if (!parse_whole(name.substr(die + kDie.size()))) return {};
    name = name.substr(0, die);
  }
  return number_in(name, "package-");
}

void add_rapl_zones(const std::vector<fs::path>& zones, const std::string& scope, EnergyLevel level,
                    FoundMeters& found) {
  std::vector<fs::path> files;
  std::string detail;
  double range_j = 0;
  for (const fs::path& zone : zones) {
    const fs::path file = zone / "energy_uj";
    if (const SmallFile read = read_small_file(file); read.error == EACCES || read.error == EPERM)
      return found.missing.push_back(
          {"rapl",
           fmt::format("{}; ask the administrator to make it readable (chmod a+r), as only root "
                       "may read it by default",
                       why_unreadable(file, read.error)),
           scope});
    try {
      small_number(file);
      const fs::path limit = zone / "max_energy_range_uj";
      const double range = read_small_file(limit).error == ENOENT ? 0 : small_number(limit) * 1e-6;
      if (!files.empty() && range != range_j)
        failure("{}: {} J, but {} J in {}", limit.string(), range, range_j, zones.front().string());
      range_j = range;
    } catch (const Failure& error) {
      return found.missing.push_back({"rapl", error.what(), scope});
    }
    detail += (detail.empty() ? "" : ", ") + file.string();
    files.push_back(file);
  }
  MeterIdentity identity{
      .source = "rapl", .scope = scope, .level = level, .detail = detail, .range_j = range_j};
  found.meters.push_back(std::make_unique<FilesMeter>(std::move(identity), files));
}

// The directory with the files of an ACPI power meter; empty: it is another device.
fs::path power_meter_directory(const fs::path& hwmon) {
  for (const fs::path& directory : {hwmon, hwmon / "device"}) {
    const std::string name = read_small_file(directory / "name").text;
    if (!name.empty() && name != "power_meter") return {};
    if (read_small_file(directory / "power1_average").error != ENOENT &&
        (name == "power_meter" || read_small_file(hwmon / "name").text == "power_meter"))
      return directory;
  }
  return {};
}

void add_domain(const std::vector<fs::path>& files, const std::string& scope, EnergyLevel level,
                const std::string& what, FoundMeters& found) {
  if (files.empty()) return;
  std::string detail = what + ": ";
  for (const fs::path& file : files) detail += (&file == files.data() ? "" : ", ") + file.string();
  add_readable(std::make_unique<FilesMeter>(MeterIdentity{.source = "hwmon",
                                                          .scope = scope,
                                                          .level = level,
                                                          .kind = MeterKind::Power,
                                                          .detail = detail},
                                            files),
               found);
}

struct AmdCard {
  std::int64_t number = 0;  // of cardN
  fs::path device = {};
  std::string pci = {};  // "": unknown
  fs::path power = {};   // the file; empty: there is none
};

// hwmon/hwmonM of a card, the lowest M; empty: none.
fs::path hwmon_of(const fs::path& device) {
  std::optional<std::int64_t> lowest;
  for (const std::string& name : names_in(device / "hwmon"))
    if (const auto number = number_in(name, "hwmon"); number && (!lowest || *number < *lowest))
      lowest = number;
  return lowest ? device / "hwmon" / fmt::format("hwmon{}", *lowest) : fs::path();
}

// `device` is a link to the directory with the address as its name; a copied tree has only uevent.
std::string pci_of(const fs::path& device) {
  std::error_code error;
  const fs::path target = fs::read_symlink(device, error);
  if (const std::string address = pci_address(target.filename().string()); !address.empty())
    return address;
  constexpr std::string_view kKey = "PCI_SLOT_NAME=";
  const std::string text = read_small_file(device / "uevent").text;
  const std::size_t at = text.find(kKey);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + kKey.size();
  return pci_address(std::string_view(text).substr(begin, text.find('\n', begin) - begin));
}

std::vector<AmdCard> amd_cards(const fs::path& directory) {
  std::vector<AmdCard> cards;
  for (const std::string& name : names_in(directory)) {
    const auto number = number_in(name, "card");  // not card0-DP-1
    if (!number) continue;
    AmdCard card{.number = *number, .device = directory / name / "device"};
    const fs::path hwmon = hwmon_of(card.device);
    if (read_small_file(card.device / "vendor").text != "0x1002" &&
        (hwmon.empty() || read_small_file(hwmon / "name").text != "amdgpu"))
      continue;
    card.pci = pci_of(card.device);
    for (const char* file : {"power1_average", "power1_input"})
      if (card.power.empty() && !hwmon.empty() && read_small_file(hwmon / file).error != ENOENT)
        card.power = hwmon / file;
    cards.push_back(std::move(card));
  }
  const bool addresses = std::all_of(cards.begin(), cards.end(),
                                     [](const AmdCard& card) { return !card.pci.empty(); });
  std::sort(cards.begin(), cards.end(), [&](const AmdCard& a, const AmdCard& b) {
    return addresses ? a.pci < b.pci : a.number < b.number;
  });
  return cards;
}

// The second die of an MI250X gives no power or 0 W: the first one reports for both.
bool reports_nothing(const AmdCard& card) {
  return card.power.empty() || parse_whole(read_small_file(card.power).text) == 0;
}

// The number of the GPU in this run; empty: it is not used.
std::optional<std::size_t> number_of(const AmdCard& card, std::size_t index,
                                     const MeterSearch& search) {
  if (!search.gpus) return index;
  const auto at = std::find_if(search.gpus->begin(), search.gpus->end(), [&](const auto& gpu) {
    return !card.pci.empty() && pci_address(gpu) == card.pci;
  });
  if (at == search.gpus->end()) return {};
  return static_cast<std::size_t>(at - search.gpus->begin());
}

void add_card(const AmdCard& card, const std::string& scope, FoundMeters& found) {
  if (card.power.empty())
    return found.missing.push_back(
        {"amdsmi",
         fmt::format("{} has no hwmon/hwmon*/power1_average or power1_input", card.device.string()),
         scope});
  const std::string detail =
      card.power.string() + (card.pci.empty() ? "" : fmt::format(" (PCI {})", card.pci));
  add_readable(std::make_unique<FilesMeter>(MeterIdentity{.source = "amdsmi",
                                                          .scope = scope,
                                                          .level = EnergyLevel::Gpu,
                                                          .kind = MeterKind::Power,
                                                          .detail = detail},
                                            std::vector{card.power}),
               found);
}

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

void add_rapl(const MeterSearch& search, FoundMeters& found) {
  const fs::path directory = search.root / "sys/class/powercap";
  std::map<std::int64_t, std::vector<fs::path>> packages;
  std::vector<fs::path> memory;
  for (const auto& [zone, path] : rapl_zones(directory)) {
    const SmallFile name = read_small_file(path / "name");
    if (name.error != 0)
      found.missing.push_back({"rapl", why_unreadable(path / "name", name.error)});
    else if (name.text == "dram")
      memory.push_back(path);
    else if (const auto package = rapl_package(name.text); package && *package < 1024)
      packages[*package].push_back(path);
    else if (name.text == "psys")
      found.missing.push_back({"rapl", fmt::format("{} is psys, which is no package", zone)});
  }
  if (packages.empty() && memory.empty())
    return found.missing.push_back(
        {"rapl", fmt::format("{} has no packages (intel-rapl:*)", directory.string())});
  for (const auto& [package, zones] : packages)
    add_rapl_zones(zones, fmt::format("package{}", package), EnergyLevel::Cpu, found);
  if (memory.empty())
    found.missing.push_back({"rapl", "no dram zone, as on CPUs of AMD: memory is not metered"});
  else
    add_rapl_zones(memory, "memory", EnergyLevel::Memory, found);
}

void add_hwmon(const MeterSearch& search, FoundMeters& found) {
  const fs::path directory = search.root / "sys/class/hwmon";
  std::vector<fs::path> modules, cpus;
  bool any = false;
  for (const std::string& name : names_in(directory)) {
    const fs::path device = power_meter_directory(directory / name);
    if (device.empty()) continue;
    any = true;
    // "Module Power Socket 0", "Grace Power Socket 0"; "CPU Power …" and "SysIO Power …" are parts
    // of Grace.
    const std::string domain = read_small_file(device / "power1_oem_info").text;
    if (domain.starts_with("Module"))
      modules.push_back(device / "power1_average");
    else if (domain.starts_with("Grace"))
      cpus.push_back(device / "power1_average");
    else if (!domain.starts_with("CPU") && !domain.starts_with("SysIO"))
      found.missing.push_back(
          {"hwmon", fmt::format("{} does not say what it measures (Module …, Grace …)",
                                (device / "power1_oem_info").string())});
  }
  if (!any)
    found.missing.push_back({"hwmon", fmt::format("{} has no power_meter", directory.string())});
  add_domain(modules, "node", EnergyLevel::Node, "all modules, without NICs and fans", found);
  add_domain(cpus, "cpu", EnergyLevel::Cpu, "all Grace CPUs with their memory", found);
}

void add_amd_sysfs(const MeterSearch& search, FoundMeters& found) {
  for (const auto& meter : found.meters)
    if (meter->identity().source == "amdsmi") return;  // the library's counters are better
  const fs::path directory = search.root / "sys/class/drm";
  const std::vector<AmdCard> cards = amd_cards(directory);
  if (cards.empty())
    return found.missing.push_back(
        {"amdsmi", fmt::format("{} has no GPU of AMD", directory.string())});
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const bool second = i > 0 && may_be_a_die(cards[i].device) && reports_nothing(cards[i]) &&
                        !reports_nothing(cards[i - 1]);
    const std::optional<std::size_t> number = number_of(cards[i], i, search);
    if (!number) continue;
    const std::string scope = fmt::format("gpu{}", *number);
    if (second)
      found.missing.push_back(
          second_die(scope, number_of(cards[i - 1], i - 1, search), cards[i - 1].pci));
    else
      add_card(cards[i], scope, found);
  }
}

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
