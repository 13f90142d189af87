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

// Indexed by EnergyLevel.
template <class T>
struct ByLevel {
  std::array<T, kEnergyLevels.size()> values = {};

  T& operator[](EnergyLevel level) { return values[static_cast<std::size_t>(level)]; }
  const T& operator[](EnergyLevel level) const { return values[static_cast<std::size_t>(level)]; }
  bool operator==(const ByLevel&) const = default;
};

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

// Adds up the readings of one meter. A counter that wraps around is followed; an interval in which
// a counter was restarted or went backwards, and time without fresh readings, is not covered. The
// joules are those of the covered time: nothing is guessed for the rest.
class MeterTotal {
 public:
  explicit MeterTotal(const MeterIdentity& identity);

  // `now_s` is a steady clock of this process and does not decrease.
  void add(const MeterReading& reading, double now_s);
  void add_failure(const std::string& why, double now_s);

  double joules() const { return joules_; }
  // Up to the last fresh reading; never decreases.
  double covered_s() const { return covered_s_; }
  // Time since the first call that is not covered, up to `now_s`. The time since the last fresh
  // reading does not count while the next one can still cover it.
  double missed_s(double now_s) const;
  std::optional<double> watts() const { return watts_; }  // now; empty: unknown
  // When the last fresh reading was made: joules() and covered_s() are up to then.
  double fresh_s() const { return last_ ? last_->now_s : 0; }
  // Why time is not covered or the joules are doubtful; empty: all is well.
  const std::string& note() const { return note_; }

 private:
  enum class Problem : std::uint8_t { Late, Gap, Restarted, Backwards, Jump, Wraps, Stuck, Stale };
  static constexpr std::size_t kProblems = 8;
  struct Noted {
    std::string text = {};
    int times = 0;
  };
  struct Point {
    double value;   // joules of a counter, watts of other meters
    double now_s;   // when it was read
    double time_s;  // when the hardware took it, by our clock
  };

  bool same_scan(const MeterReading& reading, double now_s);
  void add_joules(const MeterReading& reading, const Point& point);
  void add_watts(const Point& point);
  void stand_still(const Point& point);
  // Continues from this reading; the time before it is not covered.
  void start_again(const Point& point);
  double time_of(const MeterReading& reading, double now_s);
  // `again`: the same stretch as before, which has become longer.
  void note(Problem problem, std::string text, bool again = false);
  void write_note();

  MeterKind kind_;
  double range_j_;
  double update_s_;
  double joules_ = 0, covered_s_ = 0;
  std::optional<double> watts_;
  std::string note_;

  std::string estimate_;           // what the estimate is based on
  std::optional<double> start_s_;  // the first call
  std::optional<Point> last_;  // of a counter: the last reading that differed from the one before
  double moved_s_ = 0;         // when a counter last moved
  bool moved_ = false, stuck_ = false, stale_ = false;
  bool exact_time_ = false;               // the source says when it took a reading
  std::optional<double> clock_offset_s_;  // from our clock to that of the hardware
  std::optional<std::int64_t> restarts_, scan_;
  double scan_since_s_ = 0;
  std::string failure_;  // of the last read; empty: it succeeded
  std::array<Noted, kProblems> noted_;
};

}  // namespace kintsugi
