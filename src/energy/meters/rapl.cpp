#include <cerrno>
#include <map>
#include <utility>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/small_file.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// Adds up zones of the same range. The sum decreases by the range when one of them wraps around, so
// that it can be followed like one counter.
class RaplCounter : public Meter {
 public:
  RaplCounter(MeterIdentity identity, std::vector<fs::path> files)
      : Meter(std::move(identity)), files_(std::move(files)) {}

  MeterReading read() override {
    double microjoules = 0;
    for (const fs::path& file : files_) microjoules += small_number(file);
    return {.joules = microjoules * 1e-6};
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
  found.meters.push_back(std::make_unique<RaplCounter>(MeterIdentity{.source = "rapl",
                                                                     .scope = scope,
                                                                     .level = level,
                                                                     .kind = MeterKind::Counter,
                                                                     .detail = detail,
                                                                     .range_j = range_j},
                                                       files));
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

}  // namespace kintsugi
