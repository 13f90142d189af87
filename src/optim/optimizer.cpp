#include "optim/optimizer.h"

#include "core/philox.h"

namespace kintsugi {

Optimizer::Optimizer(Backend& backend, Arena& arena, const ParameterStore& store,
                     const AdamWSettings& settings)
    : backend_(&backend), store_(&store), settings_(settings) {
  const DType wide = accumulator_of(store.dtype());
  const std::int64_t n = store.set().buffer_elements();
  master_ = wide == store.dtype() ? store.weights()
                                  : arena.allocate(Region::Optimizer, "master weights", wide, {n});
  const DType moments = wide == DType::F64 ? wide : settings.moments;
  moment1_ = arena.allocate(Region::Optimizer, "first moments", moments, {n});
  moment2_ = arena.allocate(Region::Optimizer, "second moments", moments, {n});
  for (const Parameter& parameter : store.set().parameters()) {
    if (parameter.overwritten) continue;
    const std::int64_t begin = parameter.offset, end = begin + parameter.shape.elements();
    if (!added_.empty() && begin - added_.back().second < 64)
      added_.back().second = end;  // only padding between the two
    else
      added_.emplace_back(begin, end);
  }
  squared_norm_ = arena.allocate(Region::Optimizer, "scalars", wide, {1});
  scale_ = arena.allocate(Region::Optimizer, "scalars", wide, {1});
}

void Optimizer::zero_state() {
  backend_->fill(moment1_, 0.0);
  backend_->fill(moment2_, 0.0);
}

void Optimizer::zero_all_gradients() { backend_->fill(store_->gradients(), 0.0); }

void Optimizer::zero_added_gradients() {
  for (const auto& [begin, end] : added_)
    backend_->fill(store_->gradients().rows(begin, end - begin), 0.0);
}

void Optimizer::step(std::int64_t step, double lr, double unscale) {
  backend_->fill(squared_norm_, 0.0);
  backend_->squared_norm(squared_norm_, store_->gradients());
  backend_->clip_scale(scale_, squared_norm_, settings_.clip, unscale);
  AdamWOptions options{.lr = lr,
                       .beta1 = settings_.beta1,
                       .beta2 = settings_.beta2,
                       .eps = settings_.eps,
                       .weight_decay = 0,
                       .step = step};
  if (settings_.stochastic_rounding)
    options.rounding_key = derive_key(settings_.seed, 0x50FF, static_cast<std::uint64_t>(step)) | 1;
  const auto update = [&](std::int64_t begin, std::int64_t end, double weight_decay) {
    if (begin == end) return;
    options.weight_decay = weight_decay;
    options.first_element = begin;
    const auto part = [&](const Tensor& flat) { return flat.rows(begin, end - begin); };
    backend_->adamw(part(store_->weights()), part(master_), part(moment1_), part(moment2_),
                    part(store_->gradients()), scale_, options);
  };
  for (const Bucket& bucket : store_->set().buckets()) {
    update(bucket.begin, bucket.decay_end, settings_.weight_decay);
    update(bucket.decay_end, bucket.end, 0.0);
  }
}

}  // namespace kintsugi
