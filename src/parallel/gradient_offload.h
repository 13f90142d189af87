#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace kintsugi {

// Owned gradients in host memory. On the device they pass through: what a micro-batch adds takes in
// what the ones before it left, and goes back.
class GradientOffload {
 public:
  // Parts of at most `largest` elements, of which `kUnderWay` come at a time; `norms` sums of
  // squares.
  static constexpr std::size_t kUnderWay = 2;
  GradientOffload(Backend& backend, Arena& arena, DType dtype, std::int64_t elements,
                  std::int64_t largest, std::size_t norms);

  Tensor gradients() const { return gradients_; }  // in host memory
  // The squares of what counts, and is final, on its way out: (1), on the device.
  Tensor squared_norm(std::size_t which) const { return squared_norms_[which]; }
  void zero_state();

  // What is there of a part starts to come.
  void fetch(Tensor host);
  // The oldest of what was fetched is added.
  void add_fetched(Tensor sum);

 private:
  struct Arrival {
    Tensor here;
    std::int64_t elements = 0;
    Backend::Transfer coming = {};
  };

  Backend* backend_;
  Tensor gradients_;
  std::vector<Tensor> squared_norms_;
  std::array<Arrival, kUnderWay> arrivals_;
  std::size_t fetched_ = 0, added_ = 0;  // so far
};

}  // namespace kintsugi
