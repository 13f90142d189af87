#pragma once

#include <optional>
#include <string>

#include "energy/meter.h"

namespace kintsugi {

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
  double covered_s() const { return covered_s_; }
  // Time since the first call that is not covered, up to `now_s`.
  double missed_s(double now_s) const;
  std::optional<double> watts() const { return watts_; }  // now; empty: unknown
  // Why time is not covered or the joules are doubtful; empty: all is well.
  const std::string& note() const { return note_; }

 private:
  MeterKind kind_;
  double range_j_;
  double joules_ = 0, covered_s_ = 0;
  std::optional<double> watts_;
  std::string note_;
};

}  // namespace kintsugi
