#include "energy/meters/meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kintsugi {
namespace {

// No node needs more: 8 GPUs with their CPUs are near 10 kW. A counter that advanced faster has not
// counted joules.
constexpr double kMost_w = 20e3;
// 20 kW for more than a thousand years: what is above is no count of joules.
constexpr double kMost_j = 1e15;
// No CPU package needs more. A counter that wraps around must be read before it has counted its
// whole range at this power.
constexpr double kMostOfPackage_w = 1e3;
// A time stamp is believed if it is so close to the time of reading: sources that update once per
// second are read up to a second later.
constexpr double kClockError_s = 1.1;
constexpr double kPowerGap_s = 3;  // power is integrated over gaps up to this
// These are of sources that update once per second; for others they are multiplied by update_s.
constexpr double kStandstill_s = 3;  // a counter that does not move for so long does not count
constexpr double kStale_s = 2;       // readings that are not renewed for longer are noted

bool plausible_value(MeterKind kind, double value) {
  const double most = kind == MeterKind::Power ? kMost_w : kMost_j;
  return std::isfinite(value) && value >= 0 && value <= most;
}

}  // namespace

MeterTotal::MeterTotal(const MeterIdentity& identity)
    : kind_(identity.kind),
      range_j_(plausible_value(MeterKind::Counter, identity.range_j) ? identity.range_j : 0),
      update_s_(std::max(1.0, identity.update_s)) {
  if (kind_ == MeterKind::Estimate) estimate_ = fmt::format("an estimate: {}", identity.detail);
  write_note();
}

void MeterTotal::add(const MeterReading& reading, double now_s) {
  if (!start_s_) start_s_ = now_s;
  const bool counter = kind_ == MeterKind::Counter;
  const std::optional<double> value = counter ? reading.joules : reading.watts;
  if (!value) return add_failure(counter ? "it gave no joules" : "it gave no watts", now_s);
  if (!plausible_value(kind_, *value))
    return add_failure(fmt::format("{} {} is not plausible", *value, counter ? 'J' : 'W'), now_s);
  const std::string failure = std::exchange(failure_, {});
  if (!last_ && now_s > *start_s_)
    note(Problem::Late, fmt::format("the first reading was {:.1f} s late: {}", now_s - *start_s_,
                                    failure.empty() ? "no reading" : failure));
  const Point point{*value, now_s, time_of(reading, now_s)};
  exact_time_ = reading.time_s || reading.scan;

  const bool restarted = restarts_ && reading.restarts && *restarts_ != *reading.restarts;
  if (reading.restarts) restarts_ = reading.restarts;
  if (restarted && last_) {
    note(Problem::Restarted, "the counter was restarted");
    start_again(point);
    scan_ = reading.scan;
    scan_since_s_ = now_s;
  } else if (!same_scan(reading, now_s)) {
    if (counter)
      add_joules(reading, point);
    else if (last_ && now_s - last_->now_s > kPowerGap_s && kind_ == MeterKind::Power) {
      note(Problem::Gap, fmt::format("no power reading for {:.1f} s{}{}", now_s - last_->now_s,
                                     failure.empty() ? "" : ": ", failure));
      start_again(point);
      watts_ = point.value;
    } else
      add_watts(point);
  }
  write_note();
}

void MeterTotal::add_failure(const std::string& why, double now_s) {
  if (!start_s_) start_s_ = now_s;
  failure_ = why;
  watts_.reset();
  write_note();
}

// Whether the hardware has taken no new reading since the last one.
bool MeterTotal::same_scan(const MeterReading& reading, double now_s) {
  if (!reading.scan || !last_ || scan_ != reading.scan) {
    scan_ = reading.scan;
    scan_since_s_ = now_s;
    stale_ = false;
    return false;
  }
  const double stale_s = now_s - scan_since_s_;
  if (stale_s > kStale_s * update_s_) {
    note(Problem::Stale,
         fmt::format("readings are stale: freshness did not change for {:.1f} s", stale_s), stale_);
    stale_ = true;
    watts_.reset();
  }
  return true;
}

void MeterTotal::add_joules(const MeterReading& reading, const Point& point) {
  if (!last_) return start_again(point);
  const double span = point.time_s - last_->time_s;
  double delta = point.value - last_->value;
  if (delta == 0) return stand_still(point);
  if (range_j_ > 0 && span * kMostOfPackage_w > range_j_) {
    note(Problem::Wraps, fmt::format("no reading for {:.0f} s: the counter may have wrapped around "
                                     "more than once",
                                     span));
    return start_again(point);
  }
  if (delta < 0 && range_j_ == 0) {
    note(Problem::Restarted, "the counter was restarted");
    return start_again(point);
  }
  if (delta < 0) {
    delta += range_j_;
    // Otherwise it is nearer to a step back than to a wrap-around.
    if (delta < 0 || delta > std::min(kMost_w * span, range_j_ / 2)) {
      note(Problem::Backwards, "the counter went backwards");
      return start_again(point);
    }
  } else if (delta > kMost_w * (span + update_s_)) {
    note(Problem::Jump, fmt::format("the counter jumped by {:.4g} J in {:.1f} s", delta, span));
    return start_again(point);
  }
  start_again(point);
  moved_ = true;
  joules_ += delta;
  covered_s_ += span;
  if (reading.watts && plausible_value(MeterKind::Power, *reading.watts))
    watts_ = reading.watts;
  else if (span > 0)
    watts_ = delta / span;
}

// No package and no GPU needs 0 W: a counter without a change has not counted.
void MeterTotal::stand_still(const Point& point) {
  const double still_s = point.now_s - moved_s_;
  if (still_s < kStandstill_s * update_s_) return;
  note(Problem::Stuck, fmt::format("the counter did not move for {:.1f} s", still_s), stuck_);
  const double moved_s = moved_s_;
  start_again(point);
  moved_s_ = moved_s;
  stuck_ = true;
}

void MeterTotal::add_watts(const Point& point) {
  if (last_) {
    const double span = point.time_s - last_->time_s;
    joules_ += (last_->value + point.value) / 2 * span;
    covered_s_ += span;
  }
  start_again(point);
  watts_ = point.value;
}

void MeterTotal::start_again(const Point& point) {
  last_ = point;
  moved_s_ = point.now_s;
  stuck_ = false;
  watts_.reset();
}

// By the clock of the hardware, which does not include the delay of reading. It may differ from
// ours by less than a scan; otherwise it was set, or runs at another rate, and is compared anew.
double MeterTotal::time_of(const MeterReading& reading, double now_s) {
  if (!reading.time_s || !std::isfinite(*reading.time_s))
    return last_ ? std::max(now_s, last_->time_s) : now_s;
  if (!clock_offset_s_ || std::abs(*reading.time_s - *clock_offset_s_ - now_s) > kClockError_s)
    clock_offset_s_ = *reading.time_s - now_s;
  const double time_s = *reading.time_s - *clock_offset_s_;
  return last_ ? std::max(time_s, last_->time_s) : time_s;
}

double MeterTotal::missed_s(double now_s) const {
  if (!start_s_) return 0;
  double open_s = 0;
  if (last_ && failure_.empty()) {
    const bool counter = kind_ == MeterKind::Counter;
    const double since = now_s - (counter ? moved_s_ : last_->now_s);
    const double limit = !counter      ? kPowerGap_s
                         : exact_time_ ? update_s_
                                       : kStandstill_s * update_s_;
    if (since < limit && (moved_ || !counter)) open_s = since;
  }
  return std::max(0.0, now_s - *start_s_ - covered_s_ - open_s);
}

void MeterTotal::note(Problem problem, std::string text, bool again) {
  Noted& noted = noted_[static_cast<std::size_t>(problem)];
  noted.text = std::move(text);
  if (!again) ++noted.times;
}

void MeterTotal::write_note() {
  note_ = estimate_;
  const auto append = [this](const std::string& text) {
    note_ += (note_.empty() ? "" : "; ") + text;
  };
  for (const Noted& noted : noted_)
    if (noted.times > 0)
      append(noted.times == 1 ? noted.text : fmt::format("{} ({} times)", noted.text, noted.times));
  if (!failure_.empty()) append("the last reading failed: " + failure_);
}

}  // namespace kintsugi
