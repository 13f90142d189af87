#pragma once

#include "optim/update_rule.h"

namespace kintsugi {

// Muon (Jordan): the momentum of a matrix, orthogonalized by a Newton-Schulz iteration, with
// decoupled weight decay. As in torch.optim.Muon.
class Muon final : public MatrixRule {
 public:
  explicit Muon(const OptimizerSettings& settings);
  std::string_view name() const override { return "Muon"; }
  std::vector<StateSlot> slots(DType precision) const override;
  DType exchanged(DType precision) const override;
  void direction(Backend& backend, Tensor direction, std::span<const Tensor> slots, Tensor gradient,
                 Tensor scale, const UpdateOptions& options) const override;
  Tensor transform(Backend& backend, const MatrixWork& work) const override;
  double flops(std::int64_t rows, std::int64_t columns) const override;
  void apply(Backend& backend, Tensor weight, Tensor master, Tensor direction, Tensor scale,
             std::int64_t rows, std::int64_t columns, const UpdateOptions& options) const override;

 private:
  double lr_factor(std::int64_t rows, std::int64_t columns) const;

  OptimizerSettings settings_;
};

}  // namespace kintsugi
