#include "model/layers/norm.h"

namespace kintsugi {

void Norm::declare(Declaration& d, std::int64_t width, bool partial) {
  const auto options = [&](InitKind init) {
    return Declaration::Options{
        .group = ParameterGroup::Norm, .init = {init}, .shard = {.partial = partial}};
  };
  weight_ = d.vector(spec_.name + ".weight", width, options(InitKind::Ones));
  if (has_mean()) bias_ = d.vector(spec_.name + ".bias", width, options(InitKind::Zeros));
}

void Norm::declare_sharded(Declaration& d, std::int64_t width, int copies) {
  weight_ = d.vector(spec_.name + ".weight", width,
                     {.group = ParameterGroup::Norm,
                      .init = {InitKind::Ones},
                      .shard = {.along = Declaration::Shard::Along::Outputs, .copies = copies}});
  width_ = width * copies;
}

void Norm::declare_statistics(Declaration& d) {
  const TensorSpec statistic{.label = "norm statistics", .per = Per::Row, .wide = true};
  if (has_mean()) mean_ = d.saved(statistic);
  rstd_ = d.saved(statistic);
}

void Norm::forward(const LayerRun& run, Tensor y, const NormStatistics& s, Tensor x,
                   const Maxima& maxima) const {
  const ParameterStore& store = run.store();
  if (spec_.kind == NormKind::Rms)
    run.backend().rms_norm_forward(y, s.rstd, x, store.weight(weight_), spec_.eps, maxima);
  else
    run.backend().layer_norm_forward(y, s.mean, s.rstd, x, store.weight(weight_),
                                     store.weight(bias_), spec_.eps, maxima);
}

void Norm::backward(const LayerRun& run, Tensor dx, Tensor dy, Tensor x, const NormStatistics& s,
                    Tensor residual_gradient, const Maxima& maxima) const {
  const ParameterStore& store = run.store();
  if (spec_.kind == NormKind::Rms)
    run.backend().rms_norm_backward(dx, store.gradient(weight_), dy, x, store.weight(weight_),
                                    s.rstd, residual_gradient, maxima);
  else
    run.backend().layer_norm_backward(dx, store.gradient(weight_), store.gradient(bias_), dy, x,
                                      store.weight(weight_), s.mean, s.rstd, residual_gradient,
                                      maxima);
}

// Columns with copies on several ranks count once per copy, both in the sums and in width_. In the
// backward, each copy has a partial dy, and the all-reduce adds them up.
void Norm::forward_sharded(const LayerRun& run, Tensor y, Tensor rstd, Tensor x,
                           Tensor sums) const {
  Communicator& group = run.tensor().group();
  run.backend().rms_norm_partial(sums, x);
  group.wait(group.all_reduce(sums));
  run.backend().rms_norm_merged(y, rstd, x, run.store().weight(weight_), sums, width_, spec_.eps);
}

void Norm::backward_sharded(const LayerRun& run, Tensor dx, Tensor dy, Tensor x, Tensor rstd,
                            Tensor sums) const {
  Communicator& group = run.tensor().group();
  const Tensor weight = run.store().weight(weight_);
  run.backend().rms_norm_backward_partial(sums, dy, x, weight);
  group.wait(group.all_reduce(sums));
  run.backend().rms_norm_backward_merged(dx, run.store().gradient(weight_), dy, x, weight, rstd,
                                         sums, width_);
}

}  // namespace kintsugi
