#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "energy/meters/find_meters.h"
#include "support/temporary_directory.h"

namespace kintsugi {

// A tree with sys/… of a made-up node.
class SysfsTree {
 public:
  const std::filesystem::path& root() const { return directory_.path(); }

  // Replaces the file at once, as a reader may be running.
  void write(const std::string& path, const std::string& content) const {
    const std::filesystem::path file = root() / path, next = root() / "next";
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(next, std::ios::binary) << content;
    std::filesystem::rename(next, file);
  }
  void link(const std::string& path, const std::string& target) const {
    std::filesystem::create_directories((root() / path).parent_path());
    std::filesystem::create_directory_symlink(target, root() / path);
  }
  void make_directory(const std::string& path) const {
    std::filesystem::create_directories(root() / path);
  }
  void remove(const std::string& path) const { std::filesystem::remove_all(root() / path); }

  // pm_counters after `scan` scans of a tenth of a second at these watts.
  struct PmNode {
    double node_w = 1000, cpu_w = 200, memory_w = 50, module_w = 180;
    int modules = 4;
  };
  void write_pm_counters(const PmNode& node, int scan) const {
    const auto value = [&](const std::string& name, double watts) {
      const std::int64_t stamp = 1734094386462336 + scan * 100000;
      write("sys/cray/pm_counters/" + name + "energy",
            fmt::format("{} J {} us\n", 2178501771 + static_cast<std::int64_t>(watts * scan / 10),
                        stamp));
      write("sys/cray/pm_counters/" + name + "power", fmt::format("{} W {} us\n", watts, stamp));
    };
    value("", node.node_w);
    value("cpu_", node.cpu_w);
    value("memory_", node.memory_w);
    for (int i = 0; i < node.modules; ++i) value(fmt::format("accel{}_", i), node.module_w);
    write("sys/cray/pm_counters/startup", "1733476187953442\n");
    write("sys/cray/pm_counters/freshness", fmt::format("{}\n", 12345 + scan));
  }
  void write_rapl(const std::string& zone, const std::string& name, double joules,
                  double range_j = 262143.328850) const {
    const std::string directory = "sys/class/powercap/" + zone + "/";
    write(directory + "name", name + "\n");
    write(directory + "energy_uj", fmt::format("{:.0f}\n", joules * 1e6));
    write(directory + "max_energy_range_uj", fmt::format("{:.0f}\n", range_j * 1e6));
  }

 private:
  TemporaryDirectory directory_;
};

// The process is no longer root while this object exists, so that files can be refused.
class WithoutRights {
 public:
  WithoutRights() : root_(::geteuid() == 0) {
    if (root_) (void)!::seteuid(65534);
  }
  ~WithoutRights() {
    if (root_) (void)!::seteuid(0);
  }

 private:
  bool root_;
};

inline const Meter* meter_of(const FoundMeters& found, const std::string& source,
                             const std::string& scope) {
  for (const auto& meter : found.meters)
    if (meter->identity().source == source && meter->identity().scope == scope) return meter.get();
  return nullptr;
}
inline MeterReading read(const FoundMeters& found, const std::string& source,
                         const std::string& scope) {
  for (const auto& meter : found.meters)
    if (meter->identity().source == source && meter->identity().scope == scope)
      return meter->read();
  return {};
}
// Why a source, or one of its scopes, has no meter; "" if it is not missing.
inline std::string why_missing(const FoundMeters& found, const std::string& source,
                               const std::string& scope = "") {
  for (const FoundMeters::Missing& missing : found.missing)
    if (missing.source == source && missing.scope == scope) return missing.reason;
  return "";
}

}  // namespace kintsugi
