#include "energy/power/power_policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

std::string to_string(const PowerSettings& settings) {
  const std::string limit =
      settings.power_limit_w > 0 ? fmt::format("power limit {:g} W", settings.power_limit_w) : "";
  const std::string clock =
      settings.gpu_clock_mhz > 0 ? fmt::format("clock {} MHz", settings.gpu_clock_mhz) : "";
  return limit + (limit.empty() || clock.empty() ? "" : ", ") + clock;
}

void StepEnergy::add(std::int64_t step_tokens, double step_s, std::optional<double> step_j) {
  ++steps;
  tokens += step_tokens;
  seconds += step_s;
  if (joules) joules = step_j ? std::optional(*joules + *step_j) : std::nullopt;
}

PowerPolicy::PowerPolicy(const PowerSettings& settings, std::function<void()> apply)
    : settings_(settings), apply_(std::move(apply)), done_(!settings.any()) {
  settling_ = settling_steps();
}

std::int64_t PowerPolicy::settling_steps() const {
  return settings_.baseline_steps > 0 ? std::max<std::int64_t>(2, settings_.baseline_steps / 4) : 0;
}

std::string PowerPolicy::after_step(std::int64_t step, std::int64_t tokens, double seconds,
                                    std::optional<double> joules) {
  if (done_) return "";
  if (settling_ > 0) {
    --settling_;
    return "";
  }
  if (settings_.baseline_steps > 0) window_.add(tokens, seconds, joules);
  if (window_.steps < settings_.baseline_steps) return "";
  if (!effect_) return change(step);
  effect_->after = window_;
  done_ = true;
  return comparison();
}

std::string PowerPolicy::change(std::int64_t step) {
  effect_ = {.settings = settings_, .since_step = step + 1};
  if (window_.steps > 0) effect_->before = window_;
  window_ = {};
  settling_ = settling_steps();
  done_ = settings_.baseline_steps == 0;  // there is nothing to compare with
  try {
    if (apply_) apply_();
  } catch (const std::exception& error) {  // a wish of the user must not end a run
    effect_->refused = error.what();
    done_ = true;
    return fmt::format("energy: {} not set: {}", to_string(settings_), error.what());
  }
  return fmt::format("energy: {} from step {} on", to_string(settings_), step + 1);
}

std::string PowerPolicy::comparison() const {
  const StepEnergy &before = *effect_->before, &after = *effect_->after;
  const auto change = [](double from, double to) {
    return from > 0 ? fmt::format(" ({:+.1f} %)", 100 * (to / from - 1)) : "";
  };
  std::string line = fmt::format("energy: {}: {:.4g} tokens/s before, {:.4g} after{}",
                                 to_string(settings_), before.tokens_per_s(), after.tokens_per_s(),
                                 change(before.tokens_per_s(), after.tokens_per_s()));
  const auto from = before.j_per_token(), to = after.j_per_token();
  if (from && to)
    line += fmt::format("; {:.4g} J/token before, {:.4g} after{}", *from, *to, change(*from, *to));
  else
    line += "; J/token unknown: no meter covered all these steps";
  return line + fmt::format(", over {} steps each", after.steps);
}

}  // namespace kintsugi
