#pragma once

#include <cstdint>

namespace kintsugi {

// An exponential moving average of the weights, beside those that are trained:
// average = decay * average + (1 - decay) * weights, after every `every`-th update.
struct EmaOptions {
  double decay = 0;  // 0: no average
  std::int64_t every = 1;
  bool on() const { return decay > 0; }
  // The weight of the new weights in the average after `step`; 0: it does not change.
  double rate(std::int64_t step) const { return on() && step % every == 0 ? 1.0 - decay : 0.0; }
  bool operator==(const EmaOptions&) const = default;
};

}  // namespace kintsugi
