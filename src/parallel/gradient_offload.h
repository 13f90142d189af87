#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace kintsugi {

// Keeps the owned gradients in host memory. After each micro-batch, the gradients of earlier
// micro-batches are fetched, added to the new ones on the device, and the sum is copied back.
class GradientOffload {
 public:
  // A fetch has at most `largest` elements; at most kInFlight fetches are in flight. `norms`:
  // number of squared norms.
  static constexpr std::size_t kInFlight = 2;
  GradientOffload(Backend& backend, Arena& arena, DType dtype, std::int64_t elements,
                  std::int64_t largest, std::size_t norms);

  Tensor gradients() const { return gradients_; }  // in host memory
  // (1), on the device. Sharding and CopySums add the squares of final gradients to it as they are
  // copied to the host.
  Tensor squared_norm(std::size_t which) const { return squared_norms_[which]; }
  void zero_state();

  // Starts to copy earlier gradients to the device.
  void fetch(Tensor host);
  // Adds the gradients of the oldest fetch to `sum`.
  void add_fetched(Tensor sum);

 private:
  struct Fetch {
    Tensor buffer;
    std::int64_t elements = 0;
    Backend::Transfer transfer = {};
  };

  Backend* backend_;
  Tensor gradients_;
  std::vector<Tensor> squared_norms_;
  std::array<Fetch, kInFlight> fetches_;
  std::size_t fetched_ = 0, added_ = 0;  // number of calls so far
};

}  // namespace kintsugi
