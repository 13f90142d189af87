#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {

std::string_view to_string(ScheduleKind kind) {
  return enum_name(kind, {"cosine", "linear", "wsd", "constant"});
}

ScheduleKind parse_schedule(std::string_view text) {
  for (const ScheduleKind kind :
       {ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Wsd, ScheduleKind::Constant})
    if (text == to_string(kind)) return kind;
  user_error("'{}' is not a schedule: cosine, linear, wsd or constant", text);
}

double Schedule::learning_rate(std::int64_t global_step) const {
  const std::int64_t step = global_step - first_step;
  if (step < warmup_steps)
    return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (kind == ScheduleKind::Constant) return lr;
  const std::int64_t decay =
      decay_steps > 0 ? decay_steps : std::max<std::int64_t>(1, total_steps / 5);
  const std::int64_t begin =
      kind == ScheduleKind::Wsd ? std::max(warmup_steps, total_steps - decay) : warmup_steps;
  if (begin >= total_steps) return lr;
  const double progress = std::clamp(
      static_cast<double>(step - begin) / static_cast<double>(total_steps - begin), 0.0, 1.0);
  const double factor = kind == ScheduleKind::Cosine
                            ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress))
                            : 1.0 - progress;
  return min_lr + (lr - min_lr) * factor;
}

}  // namespace kintsugi
