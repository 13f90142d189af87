#include "optim/optimizer.h"

#include <algorithm>

#include "core/philox.h"

namespace kintsugi {

Optimizer::Optimizer(Backend& backend, Arena& arena, Sharding& sharding,
                     const AdamWSettings& settings)
    : backend_(&backend), sharding_(&sharding), settings_(settings) {
  const DType precision = sharding.store().dtype(), wide = accumulator_of(precision);
  std::int64_t n = 0;
  for (int bucket = 0; bucket < static_cast<int>(sharding.set().buckets().size()); ++bucket) {
    offsets_.push_back(n);
    n += sharding.part_elements(bucket);
  }
  if (wide != precision) master_ = arena.allocate(Region::Optimizer, "master weights", wide, {n});
  const DType moments = wide == DType::F64 ? wide : settings.moments;
  moment1_ = arena.allocate(Region::Optimizer, "first moments", moments, {n});
  moment2_ = arena.allocate(Region::Optimizer, "second moments", moments, {n});
  squared_norm_ = arena.allocate(Region::Optimizer, "scalars", wide, {1});
  scale_ = arena.allocate(Region::Optimizer, "scalars", wide, {1});
  gradient_pieces_ = sharding.counted_gradient_pieces();
}

Tensor Optimizer::owned(const Tensor& flat, int bucket) const {
  return flat.rows(offsets_[static_cast<std::size_t>(bucket)], sharding_->owned(bucket).size());
}

Tensor Optimizer::master(int bucket) const {
  return master_ ? owned(master_, bucket) : sharding_->owned_weights(bucket);
}

void Optimizer::zero_state() {
  if (master_) backend_->fill(master_, 0.0);
  backend_->fill(moment1_, 0.0);
  backend_->fill(moment2_, 0.0);
}

void Optimizer::update(int bucket, std::int64_t begin, std::int64_t end,
                       const AdamWOptions& options) {
  const Sharding::Range mine = sharding_->owned(bucket);
  begin = std::max(begin, mine.begin);
  end = std::min(end, mine.end);
  if (begin >= end) return;
  AdamWOptions here = options;
  here.first_element = begin;
  const auto part = [&](const Tensor& x) { return x.rows(begin - mine.begin, end - begin); };
  backend_->adamw(part(sharding_->owned_weights(bucket)), part(master(bucket)),
                  part(moment1(bucket)), part(moment2(bucket)),
                  part(sharding_->owned_gradients(bucket)), scale_, here);
}

void Optimizer::step(std::int64_t step, double lr, double unscale) {
  backend_->fill(squared_norm_, 0.0);
  for (const Tensor& piece : gradient_pieces_) backend_->squared_norm(squared_norm_, piece);
  Communicator& copy = *sharding_->groups().copy;
  if (copy.size() > 1) copy.wait(copy.all_reduce(squared_norm_));
  backend_->clip_scale(scale_, squared_norm_, settings_.clip, unscale);
  AdamWOptions options{.lr = lr,
                       .beta1 = settings_.beta1,
                       .beta2 = settings_.beta2,
                       .eps = settings_.eps,
                       .weight_decay = 0,
                       .step = step};
  if (settings_.stochastic_rounding)
    options.rounding_key = derive_key(settings_.seed, 0x50FF, static_cast<std::uint64_t>(step)) | 1;
  const std::vector<Bucket>& buckets = sharding_->set().buckets();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    options.weight_decay = settings_.weight_decay;
    update(static_cast<int>(b), buckets[b].begin, buckets[b].decay_end, options);
    options.weight_decay = 0;
    update(static_cast<int>(b), buckets[b].decay_end, buckets[b].end, options);
  }
  sharding_->weights_changed();
}

}  // namespace kintsugi
