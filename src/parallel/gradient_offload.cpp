#include "parallel/gradient_offload.h"

#include <utility>

namespace kintsugi {

GradientOffload::GradientOffload(Backend& backend, Arena& arena, DType dtype, std::int64_t elements,
                                 std::int64_t largest, std::size_t norms)
    : backend_(&backend),
      gradients_(
          arena.allocate(Region::Gradients, "gradients, a part", dtype, {elements}, Side::Host)) {
  for (std::size_t i = 0; i < norms; ++i)
    squared_norms_.push_back(arena.allocate(Region::Gradients, "scalars", dtype, {1}));
  for (Arrival& arrival : arrivals_)
    arrival.here =
        arena.allocate(Region::Communication, "earlier gradients of a layer", dtype, {largest});
}

void GradientOffload::zero_state() {
  backend_->fill(gradients_, 0.0);
  for (const Tensor& norm : squared_norms_) backend_->fill(norm, 0.0);
}

void GradientOffload::fetch(Tensor host) {
  KINTSUGI_CHECK(fetched_ - added_ < kUnderWay, "{} parts of gradients are already on their way",
                 fetched_ - added_);
  Arrival& arrival = arrivals_[fetched_++ % kUnderWay];
  arrival.elements = host.elements();
  arrival.coming = backend_->to_device(arrival.here.rows(0, arrival.elements), host);
}

void GradientOffload::add_fetched(Tensor sum) {
  Arrival& arrival = arrivals_[added_++ % kUnderWay];
  KINTSUGI_CHECK(arrival.elements == sum.elements(), "{} elements came for {}", arrival.elements,
                 sum.elements());
  backend_->wait(std::exchange(arrival.coming, {}));
  backend_->add(sum, arrival.here.rows(0, arrival.elements));
}

}  // namespace kintsugi
