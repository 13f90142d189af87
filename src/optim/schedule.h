#pragma once

#include <cstdint>
#include <string_view>

namespace kintsugi {

enum class ScheduleKind : std::uint8_t { Cosine, Linear, Wsd, Constant };
std::string_view to_string(ScheduleKind kind);
ScheduleKind parse_schedule(std::string_view text);

// Learning rate: linear warm-up from zero, then cosine or linear decay to min_lr at the last step.
// WSD (warmup-stable-decay) stays at lr and decays linearly over the last decay_steps. Constant
// stays at lr.
struct Schedule {
  ScheduleKind kind = ScheduleKind::Cosine;
  double lr = 1e-3;
  double min_lr = 1e-4;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // WSD only; 0: total_steps / 5
  std::int64_t total_steps = 1;
  std::int64_t first_step = 0;  // steps before the first one of this schedule

  std::int64_t last_step() const { return first_step + total_steps; }
  double learning_rate(std::int64_t global_step) const;  // first_step + 1 is the first
};

}  // namespace kintsugi
