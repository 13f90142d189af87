#include "energy/power/power_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "energy/meters/meter.h"

namespace kintsugi {
namespace {

constexpr int kDefaultLimits = 6;
constexpr double kNearlyFull = 0.95;   // of the highest speed
constexpr double kLeastCovered = 0.5;  // of a measurement by each meter

// From the highest limit to the lowest, in steps of 5 W.
std::vector<double> default_limits(const ControlRange& range) {
  std::vector<double> limits;
  for (int i = 0; i < kDefaultLimits; ++i) {
    const double exact = range.high - (range.high - range.low) * i / (kDefaultLimits - 1);
    const double limit = std::clamp(5 * std::round(exact / 5), range.low, range.high);
    if (limits.empty() || limit < limits.back()) limits.push_back(limit);
  }
  return limits;
}

// Readings of all meters during one measurement.
class SweepMeters {
 public:
  SweepMeters(const std::vector<Meter*>& meters, double now_s) : meters_(meters) {
    for (const Meter* meter : meters) totals_.emplace_back(meter->identity());
    read(now_s);
  }
  void read(double now_s) {
    for (std::size_t i = 0; i < meters_.size(); ++i) try {
        totals_[i].add(meters_[i]->read(), now_s);
      } catch (const Failure& error) {
        totals_[i].add_failure(error.what(), now_s);
      }
    read_s_ = now_s;
  }
  double read_s() const { return read_s_; }
  // Watts over the covered time. Failure if a meter covered less than half of `seconds`.
  void report(double seconds, SweepPoint& point) const {
    for (std::size_t i = 0; i < totals_.size(); ++i) {
      const MeterTotal& total = totals_[i];
      const MeterIdentity& identity = meters_[i]->identity();
      if (total.covered_s() < kLeastCovered * seconds)
        failure("the meter {} {} covered only {:.1f} of {:.1f} s{}{}", identity.source,
                identity.scope, total.covered_s(), seconds, total.note().empty() ? "" : ": ",
                total.note());
      point.watts += total.joules() / total.covered_s();
      if (!total.note().empty()) point.note = total.note();
    }
  }

 private:
  const std::vector<Meter*>& meters_;
  std::vector<MeterTotal> totals_;
  double read_s_ = 0;
};

// False if it was stopped before its end.
bool measure(const std::vector<Meter*>& meters, const SweepOptions& options,
             const SweepWorkload& workload, SweepPoint& point) {
  const double settle_end = workload.now_s() + options.settle_s;
  do {
    if (workload.stop()) return false;
    workload.step();
  } while (workload.now_s() < settle_end);
  const double start = workload.now_s();
  SweepMeters energy(meters, start);
  std::int64_t tokens = 0;
  double now = start;
  do {
    if (workload.stop()) return false;
    tokens += workload.step();
    now = workload.now_s();
    if (now - energy.read_s() >= options.sample_s) energy.read(now);
  } while (now - start < options.seconds);
  if (energy.read_s() < now) energy.read(now);
  point.seconds = now - start;
  point.tokens_per_s = static_cast<double>(tokens) / point.seconds;
  energy.report(point.seconds, point);
  return true;
}

struct SweepSetting {
  std::optional<double> limit_w = {};
  std::optional<int> clock_mhz = {};
};

std::vector<SweepSetting> settings_of(const PowerControl& control, const SweepOptions& options) {
  std::vector<SweepSetting> settings;
  if (options.as_is) return settings;
  std::vector<double> limits = options.limits_w;
  if (limits.empty() && options.clocks_mhz.empty())
    if (const auto range = control.power_range_w()) limits = default_limits(*range);
  for (const double limit : limits) {
    control.check_power_limit(limit);
    settings.push_back({.limit_w = limit});
  }
  for (const int clock : options.clocks_mhz) {
    control.check_clock(clock);
    settings.push_back({.clock_mhz = clock});
  }
  return settings;
}

void apply(PowerControl& control, const SweepSetting& setting) {
  control.restore();
  if (setting.limit_w) control.set_power_limit(*setting.limit_w);
  if (setting.clock_mhz) control.lock_clock(*setting.clock_mhz);
}

}  // namespace

PowerSweep sweep_power(PowerControl& control, const std::vector<Meter*>& meters,
                       const SweepOptions& options, const SweepWorkload& workload) {
  PowerSweep sweep;
  std::vector<SweepSetting> settings = settings_of(control, options);
  if (settings.empty() && !options.as_is)
    sweep.not_done = control.problem().empty() ? "the driver reports no range of power limits"
                                               : control.problem();
  if (settings.empty()) settings.emplace_back();  // as it is
  for (const SweepSetting& setting : settings) {
    SweepPoint point{.clock_mhz = setting.clock_mhz};
    try {
      apply(control, setting);
    } catch (const ControlRefused& error) {
      sweep.not_done = error.what();
      point.clock_mhz.reset();
      if (!sweep.points.empty()) break;
    }
    point.limit_w = control.power_limit_w();
    sweep.stopped = !measure(meters, options, workload, point);
    if (!sweep.stopped) sweep.points.push_back(std::move(point));
    if (workload.progress) workload.progress(std::ssize(sweep.points), std::ssize(settings));
    if (sweep.stopped || !sweep.not_done.empty()) break;
  }
  if (const std::string left = control.restore(); !left.empty())
    sweep.not_done += (sweep.not_done.empty() ? "" : "; ") + left;
  return sweep;
}

const SweepPoint* PowerSweep::optimum() const {
  const auto best = std::ranges::min_element(points, {}, &SweepPoint::j_per_token);
  return best == points.end() ? nullptr : &*best;
}

const SweepPoint* PowerSweep::fast_optimum() const {
  double fastest = 0;
  for (const SweepPoint& point : points) fastest = std::max(fastest, point.tokens_per_s);
  const SweepPoint* best = nullptr;
  for (const SweepPoint& point : points)
    if (point.tokens_per_s >= kNearlyFull * fastest &&
        (best == nullptr || point.j_per_token() < best->j_per_token()))
      best = &point;
  return best;
}

Table to_table(const PowerSweep& sweep) {
  Table table(
      {Column::number("limit W", "power_limit_w", "{:g}"), Column::number("clock MHz", "clock_mhz"),
       Column::hidden("seconds"), Column::number("tokens/s", "tokens_per_s", "{:.1f}"),
       Column::number("W", "watts", "{:.1f}"), Column::number("J/token", "j_per_token", "{:.4g}"),
       Column::percent("speed"), Column::text("", "note")});
  double fastest = 0;
  for (const SweepPoint& point : sweep.points) fastest = std::max(fastest, point.tokens_per_s);
  for (const SweepPoint& point : sweep.points) {
    std::string remarks;
    if (sweep.points.size() > 1 && &point == sweep.optimum()) remarks = "fewest J/token  ";
    if (sweep.points.size() > 1 && &point == sweep.fast_optimum())
      remarks += "fewest J/token within 5 % of full speed  ";
    if (!point.note.empty()) remarks += "(" + point.note + ")";
    table.add({point.limit_w,
               point.clock_mhz,
               point.seconds,
               point.tokens_per_s,
               point.watts,
               point.j_per_token(),
               fastest > 0 ? point.tokens_per_s / fastest : 0,
               {Cell::or_missing(point.note).value, remarks}});
  }
  return table;
}

}  // namespace kintsugi
