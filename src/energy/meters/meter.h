#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kintsugi {

// The part of a node whose energy a meter measures. A node contains the other levels.
enum class EnergyLevel : std::uint8_t { Gpu, Cpu, Memory, Node };
inline constexpr std::array<EnergyLevel, 4> kEnergyLevels = {
    EnergyLevel::Gpu, EnergyLevel::Cpu, EnergyLevel::Memory, EnergyLevel::Node};
constexpr std::string_view to_string(EnergyLevel level) {
  constexpr std::array<std::string_view, 4> words = {"gpu", "cpu", "memory", "node"};
  return words[static_cast<std::size_t>(level)];
}

// How a meter gets its joules, the most reliable way first.
enum class MeterKind : std::uint8_t {
  Counter,   // the hardware counts joules
  Power,     // watts that are read now and then, integrated
  Estimate,  // watts that the user gave
};
constexpr std::string_view to_string(MeterKind kind) {
  constexpr std::array<std::string_view, 3> words = {"counter", "power", "estimate"};
  return words[static_cast<std::size_t>(kind)];
}

struct MeterIdentity {
  std::string source = {};  // pm_counters, rapl, nvml, amdsmi, hwmon, ear, slurm, estimate
  std::string scope = {};   // node, cpu, memory, gpu0 …, package0 …
  EnergyLevel level = EnergyLevel::Node;
  MeterKind kind = MeterKind::Counter;
  std::string detail = {};  // for people: the file, or the name and the PCI address of the GPU
  // Of a counter that starts again at 0 when it reaches this value; 0: it never does.
  double range_j = 0;
  double update_s = 1;  // the values are at most so old
};
// Meters that are slower are of no use for figures of single steps.
inline constexpr double kLiveUpdate_s = 3;

// One reading. A counter gives joules, a meter of kind Power watts; either may give both.
struct MeterReading {
  std::optional<double> joules = {};  // since some time in the past
  std::optional<double> watts = {};
  // When the hardware took the values, by its own clock in seconds; empty: when they were read.
  std::optional<double> time_s = {};
  // Changes when the counter was restarted; empty: unknown.
  std::optional<std::int64_t> restarts = {};
  // Changes with each scan of the hardware: the same number again is the same reading.
  std::optional<std::int64_t> scan = {};
};

// One energy meter. Not thread-safe; used by one thread at a time.
class Meter {
 public:
  explicit Meter(MeterIdentity identity) : identity_(std::move(identity)) {}
  virtual ~Meter() = default;
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  const MeterIdentity& identity() const { return identity_; }
  // Reads the hardware; may take some milliseconds. Failure with the reason in one line.
  virtual MeterReading read() = 0;

 private:
  MeterIdentity identity_;
};

}  // namespace kintsugi
