#pragma once

#include <cstdint>

namespace kintsugi {

struct LossScaleOptions {
  double initial = 4294967296.0;  // 2^32
  double minimum = 1.0;
  std::int64_t growth_interval = 1000;
  std::int64_t hysteresis = 2;
  bool operator==(const LossScaleOptions&) const = default;
};

// Dynamic loss scaling for fp16, with Megatron's rules. The scale doubles after `growth_interval`
// good steps. An overflow skips the step and decrements the hysteresis; at 0, it also halves the
// scale. Only growth resets the hysteresis.
class LossScaler {
 public:
  struct State {
    double scale = 1.0;
    std::int64_t good_steps = 0;
    std::int64_t hysteresis = 0;
    bool operator==(const State&) const = default;
  };

  LossScaler() = default;  // a constant scale of 1, for all precisions but fp16
  explicit LossScaler(const LossScaleOptions& options)
      : options_(options), dynamic_(true), state_{options.initial, 0, options.hysteresis} {}

  double scale() const { return state_.scale; }
  bool dynamic() const { return dynamic_; }
  void update(bool overflow);

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScaleOptions options_;
  bool dynamic_ = false;
  State state_;
};

}  // namespace kintsugi
