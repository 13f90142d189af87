#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace kintsugi {

// What a run asks of its GPUs; 0: nothing.
struct PowerSettings {
  double power_limit_w = 0;
  int gpu_clock_mhz = 0;
  std::int64_t baseline_steps = 20;  // measured before the change, and as many after it

  bool any() const { return power_limit_w > 0 || gpu_clock_mhz > 0; }
};

// "power limit 500 W", "clock 1410 MHz" or both.
std::string to_string(const PowerSettings& settings);

// Speed and energy over some steps.
struct StepEnergy {
  std::int64_t steps = 0, tokens = 0;
  double seconds = 0;
  std::optional<double> joules = 0.0;  // empty: of some step they are not known

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  std::optional<double> j_per_token() const {
    if (!joules || tokens == 0) return std::nullopt;
    return *joules / static_cast<double>(tokens);
  }
  void add(std::int64_t step_tokens, double step_s, std::optional<double> step_j);
};

// What a setting changed, for the log and the energy report.
struct PowerEffect {
  PowerSettings settings = {};
  std::int64_t since_step = 0;  // the first step with the setting
  std::string refused = {};     // why the setting was not made; empty: it was
  // Over the same number of steps; empty until all of them are done, or without a baseline.
  std::optional<StepEnergy> before = {}, after = {};
};

// Changes the power of the GPUs after the first steps of a run and measures what that changes. All
// nodes use the same settings and therefore change them after the same step.
class PowerPolicy {
 public:
  // `apply` makes the setting on all nodes or on none; it is called on all ranks after the same
  // step. What it throws is the reason of a refusal.
  PowerPolicy(const PowerSettings& settings, std::function<void()> apply);

  // Steps that are not counted at the start and after the change: caches fill and clocks settle.
  std::int64_t settling_steps() const;
  // Call it after each step, also with settings that ask for nothing. Without meters the joules are
  // empty. Returns a line for the log when there is something to report, otherwise "".
  std::string after_step(std::int64_t step, std::int64_t tokens, double seconds,
                         std::optional<double> joules);
  const std::optional<PowerEffect>& effect() const { return effect_; }  // empty: not set yet

 private:
  std::string change(std::int64_t step);
  std::string comparison() const;

  PowerSettings settings_;
  std::function<void()> apply_;
  std::int64_t settling_ = 0;  // steps still to be ignored
  StepEnergy window_;
  bool done_ = false;
  std::optional<PowerEffect> effect_;
};

}  // namespace kintsugi
