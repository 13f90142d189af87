#include <cerrno>
#include <utility>

#include "core/error.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/small_file.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// The sum of the power meters of all sockets.
class HwmonPower : public Meter {
 public:
  HwmonPower(MeterIdentity identity, std::vector<fs::path> files)
      : Meter(std::move(identity)), files_(std::move(files)) {}

  MeterReading read() override {
    double microwatts = 0;
    for (const fs::path& file : files_) microwatts += small_number(file);
    return {.watts = microwatts * 1e-6};
  }

 private:
  std::vector<fs::path> files_;
};

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
  auto meter = std::make_unique<HwmonPower>(MeterIdentity{.source = "hwmon",
                                                          .scope = scope,
                                                          .level = level,
                                                          .kind = MeterKind::Power,
                                                          .detail = detail},
                                            files);
  try {
    meter->read();
    found.meters.push_back(std::move(meter));
  } catch (const Failure& error) {
    found.missing.push_back({"hwmon", error.what(), scope});
  }
}

}  // namespace

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

}  // namespace kintsugi
