#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "model/parameter_set.h"

namespace kintsugi {

// How finely updates may be divided, among ranks and among pieces of an offloaded state.
enum class Grain : std::uint8_t {
  Element,  // anywhere
  Matrix,   // never within a parameter: plan_state refuses a layout that cuts one
};

// One tensor of state per parameter, with the parameter's elements.
struct StateSlot {
  std::string name;   // in checkpoints, before the parameter's: "exp_avg"
  std::string label;  // in the memory plan
  DType dtype = DType::F32;
};

// What an update is given beside its tensors.
struct UpdateOptions {
  std::int64_t step = 1;  // counts from 1
  double lr = 0;
  bool decays = false;
  std::int64_t first_element = 0;  // in the set's numbering
  Shape shape = {};                // Grain::Matrix only: of the parameter
};

// How parameters follow from their gradients. Sharding, offload, checkpoints and the memory plan
// see slots and grain alone.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string_view name() const = 0;
  virtual Grain grain() const = 0;
  virtual std::vector<StateSlot> slots(DType precision) const = 0;  // of the weights
  // One step on gradient * scale. All tensors are flat, of the same elements: neighbours with the
  // same decay, or at Grain::Matrix one whole parameter. `slots` are in the order of slots().
  // master may be weight itself; otherwise weight is rounded from it. A scale that is not finite
  // leaves everything as it was.
  virtual void update(Backend& backend, Tensor weight, Tensor master, std::span<const Tensor> slots,
                      Tensor gradient, Tensor scale, const UpdateOptions& options) const = 0;
};

// Which rule updates a parameter. The same object for all parameters with that rule.
using UpdateRules = std::function<const UpdateRule&(const Parameter& parameter)>;

struct OptimizerSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;         // on matrices only
  double clip = 1.0;                 // global gradient norm; 0: none
  DType moments = DType::F32;        // bf16 halves the optimizer's memory; fp64 runs keep fp64
  bool stochastic_rounding = false;  // of bf16 moments
  std::uint64_t seed = 0;            // of that rounding
  UpdateRules rules = {};            // empty: those that the parameters name
};
UpdateRules update_rules(const OptimizerSettings& settings);

// Every rule of the set's parameters once, in their order.
std::vector<const UpdateRule*> rules_of(const ParameterSet& set, const UpdateRules& rules);

}  // namespace kintsugi
