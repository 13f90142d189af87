#include "parallel/gradient_offload.h"

#include <utility>

namespace kintsugi {

GradientOffload::GradientOffload(Backend& backend, Arena& arena, DType dtype, std::int64_t elements,
                                 std::int64_t largest, std::size_t norms)
    : backend_(&backend),
      gradients_(
          arena.allocate(Region::Gradients, "gradients, sharded", dtype, {elements}, Side::Host)) {
  for (std::size_t i = 0; i < norms; ++i)
    squared_norms_.push_back(arena.allocate(Region::Gradients, "scalars", dtype, {1}));
  for (Fetch& fetch : fetches_)
    fetch.buffer = arena.allocate(Region::Communication, "fetched gradients", dtype, {largest});
}

void GradientOffload::zero_state() {
  backend_->fill(gradients_, 0.0);
  for (const Tensor& norm : squared_norms_) backend_->fill(norm, 0.0);
}

void GradientOffload::fetch(Tensor host) {
  KINTSUGI_CHECK(fetched_ - added_ < kInFlight, "{} fetches of gradients are already in flight",
                 fetched_ - added_);
  Fetch& fetch = fetches_[fetched_++ % kInFlight];
  fetch.elements = host.elements();
  fetch.transfer = backend_->to_device(fetch.buffer.rows(0, fetch.elements), host);
}

void GradientOffload::add_fetched(Tensor sum) {
  Fetch& fetch = fetches_[added_++ % kInFlight];
  KINTSUGI_CHECK(fetch.elements == sum.elements(), "{} elements were fetched for a sum of {}",
                 fetch.elements, sum.elements());
  backend_->wait(std::exchange(fetch.transfer, {}));
  backend_->add(sum, fetch.buffer.rows(0, fetch.elements));
}

}  // namespace kintsugi
