#pragma once

#include <cstdint>
#include <string_view>

namespace kintsugi {

enum class ScheduleKind : std::uint8_t { Cosine, Linear, Wsd, Constant };
std::string_view to_string(ScheduleKind kind);
ScheduleKind parse_schedule(std::string_view text);

// Warm-up from zero, then: cosine or a straight line down to min_lr at the last step; WSD stays at
// lr and falls in a straight line over the last decay_steps; constant stays.
struct Schedule {
  ScheduleKind kind = ScheduleKind::Cosine;
  double lr = 1e-3;
  double min_lr = 1e-4;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // WSD only; 0: a fifth of the run
  std::int64_t total_steps = 1;

  double learning_rate(std::int64_t step) const;  // steps count from 1
};

}  // namespace kintsugi
