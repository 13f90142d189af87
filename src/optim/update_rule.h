#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "model/parameter_set.h"
#include "optim/ema.h"

namespace kintsugi {

// Where the elements of a parameter may be split between ranks or between blocks of offloaded
// state.
enum class Grain : std::uint8_t {
  Element,  // anywhere
  Matrix,   // nowhere: plan_state refuses a layout that splits such a parameter
};

// A kind of optimizer state: one value per element of a parameter.
struct StateSlot {
  std::string name;   // prefix of the parameter's name in checkpoints: "exp_avg"
  std::string label;  // in the memory plan
  DType dtype = DType::F32;
};

// Arguments of an update besides its tensors.
struct UpdateOptions {
  std::int64_t step = 1;  // counts from 1
  double lr = 0;
  bool decays = false;
  std::int64_t first_element = 0;  // in the set's numbering
  Shape shape = {};                // of the parameter; Grain::Matrix only
};

// An optimizer algorithm: how a gradient changes its parameter. Sharding, offload, checkpoints and
// the memory plan depend only on slots() and grain().
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string_view name() const = 0;
  virtual Grain grain() const = 0;
  virtual std::vector<StateSlot> slots(DType precision) const = 0;  // `precision` of the weights
  // Whether weight decay applies to a parameter; matrices decay unless a rule says otherwise.
  virtual bool decays(const Parameter& parameter) const { return parameter.decay; }
  // Applies one step with gradient * scale. All tensors are flat and have the same elements: a
  // range with the same decay or, with Grain::Matrix, one whole parameter. `slots` are in the order
  // of slots(). master may be weight itself; otherwise weight is rounded from it. If scale is not
  // finite, nothing changes.
  virtual void update(Backend& backend, Tensor weight, Tensor master, std::span<const Tensor> slots,
                      Tensor gradient, Tensor scale, const UpdateOptions& options) const = 0;
};

// Returns the rule of a parameter: the same object for all parameters with that rule.
using UpdateRules = std::function<const UpdateRule&(const Parameter& parameter)>;

struct OptimizerSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;         // on matrices only
  bool decay_embeddings = true;      // false: not on tokens' and positions' tables
  double clip = 1.0;                 // maximum global gradient norm; 0: no clipping
  DType moments = DType::F32;        // bf16 halves the optimizer's memory; fp64 runs keep fp64
  bool stochastic_rounding = false;  // of bf16 moments
  std::uint64_t seed = 0;            // of that rounding
  EmaOptions ema = {};               // of the weights
  UpdateRules rules = {};            // empty: according to Parameter::rule
};
UpdateRules update_rules(const OptimizerSettings& settings);

// The distinct rules of the set's parameters, in parameter order.
std::vector<const UpdateRule*> rules_of(const ParameterSet& set, const UpdateRules& rules);

}  // namespace kintsugi
