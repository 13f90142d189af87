#pragma once

#include "optim/update_rule.h"

namespace kintsugi {

// Adam with decoupled weight decay (Loshchilov and Hutter).
class AdamW final : public ElementRule {
 public:
  explicit AdamW(const OptimizerSettings& settings);
  std::string_view name() const override { return "AdamW"; }
  std::vector<StateSlot> slots(DType precision) const override;
  bool decays(const Parameter& parameter) const override;
  void update(Backend& backend, Tensor weight, Tensor master, std::span<const Tensor> slots,
              Tensor gradient, Tensor scale, const UpdateOptions& options) const override;

 private:
  AdamWOptions options_;
  OptimizerSettings settings_;
};

}  // namespace kintsugi
