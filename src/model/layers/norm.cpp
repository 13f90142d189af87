#include "model/layers/norm.h"

namespace kintsugi {

Norm::Norm(Backend& backend, const ParameterStore& store, NormKind kind, double eps,
           const std::string& weight, const std::string& bias)
    : backend_(&backend),
      store_(&store),
      kind_(kind),
      eps_(eps),
      weight_(store.set().index(weight)) {
  if (kind == NormKind::Layer) bias_ = store.set().index(bias);
}

void Norm::forward(Tensor y, const NormStatistics& s, Tensor x) const {
  if (kind_ == NormKind::Rms)
    backend_->rms_norm_forward(y, s.rstd, x, store_->weight(weight_), eps_);
  else
    backend_->layer_norm_forward(y, s.mean, s.rstd, x, store_->weight(weight_),
                                 store_->weight(bias_), eps_);
}

void Norm::backward(Tensor dx, Tensor dy, Tensor x, const NormStatistics& s,
                    Tensor residual_gradient) const {
  if (kind_ == NormKind::Rms)
    backend_->rms_norm_backward(dx, store_->gradient(weight_), dy, x, store_->weight(weight_),
                                s.rstd, residual_gradient);
  else
    backend_->layer_norm_backward(dx, store_->gradient(weight_), store_->gradient(bias_), dy, x,
                                  store_->weight(weight_), s.mean, s.rstd, residual_gradient);
}

}  // namespace kintsugi
