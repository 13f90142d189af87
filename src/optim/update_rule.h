#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "model/parameter_set.h"

namespace kintsugi {

// An exponential moving average of the weights, beside those that are trained:
// average = decay * average + (1 - decay) * weights, after every `every`-th update.
struct EmaOptions {
  double decay = 0;  // 0: no average
  std::int64_t every = 1;
  bool on() const { return decay > 0; }
  // The weight of the new weights in the average after `step`; 0: it does not change.
  double rate(std::int64_t step) const { return on() && step % every == 0 ? 1.0 - decay : 0.0; }
  bool operator==(const EmaOptions&) const = default;
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
};

// An optimizer algorithm: how a gradient changes its parameter. It is an ElementRule or a
// MatrixRule. Sharding, offload, checkpoints and the memory plan depend only on slots().
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string_view name() const = 0;
  virtual std::vector<StateSlot> slots(DType precision) const = 0;  // `precision` of the weights
  // Whether weight decay applies to a parameter; matrices decay unless a rule says otherwise.
  virtual bool decays(const Parameter& parameter) const { return parameter.decay; }
};

// A rule that updates each element by itself.
class ElementRule : public UpdateRule {
 public:
  // Applies one step with gradient * scale. All tensors are flat and have the same elements, a
  // range with the same decay. `slots` are in the order of slots(). master may be weight itself;
  // otherwise weight is rounded from it. If scale is not finite, nothing changes.
  virtual void update(Backend& backend, Tensor weight, Tensor master, std::span<const Tensor> slots,
                      Tensor gradient, Tensor scale, const UpdateOptions& options) const = 0;
};

// The memory in which a MatrixRule works on a batch of matrices of one shape.
struct MatrixWork {
  Tensor x;              // (batch, rows, columns)
  Tensor other;          // like x
  Tensor squares[2];     // (batch, n, n), n the smaller of rows and columns
  Tensor squared_norms;  // (batch), in accumulator precision
};

// A rule that needs whole matrices. The elements are sharded like those of any other rule; before
// and after transform() they are exchanged with the rank that has the whole matrix
// (MatrixUpdates). So the result does not depend on the layout.
class MatrixRule : public UpdateRule {
 public:
  // The type in which directions are exchanged and transformed.
  virtual DType exchanged(DType precision) const = 0;
  // Updates the slots of some elements and writes their direction, which may be empty. If scale is
  // not finite, no slot changes and the direction is 0.
  virtual void direction(Backend& backend, Tensor direction, std::span<const Tensor> slots,
                         Tensor gradient, Tensor scale, const UpdateOptions& options) const = 0;
  // Transforms the directions `work.x` of whole matrices. Returns work.x or work.other, which has
  // the result.
  virtual Tensor transform(Backend& backend, const MatrixWork& work) const = 0;
  virtual double flops(std::int64_t rows, std::int64_t columns) const = 0;  // of transform()
  // Moves some elements of a (rows, columns) matrix along their transformed direction. If scale is
  // not finite, nothing changes.
  virtual void apply(Backend& backend, Tensor weight, Tensor master, Tensor direction, Tensor scale,
                     std::int64_t rows, std::int64_t columns,
                     const UpdateOptions& options) const = 0;
};

// Returns the rule of a parameter: the same object for all parameters with that rule.
using UpdateRules = std::function<const UpdateRule&(const Parameter& parameter)>;

// How the learning rate of a matrix depends on its shape; the names are those of torch.optim.Muon.
enum class LrAdjustment : std::uint8_t {
  MatchRmsAdamW,  // * 0.2 sqrt(max(rows, columns)): updates as large as AdamW's
  Original,       // * sqrt(max(1, rows / columns))
};

struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = true;
  std::int64_t steps = 5;  // of the Newton-Schulz iteration
  double eps = 1e-7;       // the smallest norm that is divided by
  LrAdjustment adjust_lr = LrAdjustment::MatchRmsAdamW;
  double lr_factor = 1;           // its learning rate relative to AdamW's
  DType precision = DType::BF16;  // of the exchange and the iteration; fp64 runs use fp64
};

enum class OptimizerKind : std::uint8_t { AdamW, Muon };

struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::AdamW;  // Muon: of the hidden matrices, AdamW of the rest
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;         // on matrices only
  bool decay_embeddings = true;      // false: not on tokens' and positions' tables
  double clip = 1.0;                 // maximum global gradient norm; 0: no clipping
  DType moments = DType::F32;        // bf16 halves the optimizer's memory; fp64 runs keep fp64
  bool stochastic_rounding = false;  // of bf16 moments
  std::uint64_t seed = 0;            // of that rounding
  MuonSettings muon = {};
  EmaOptions ema = {};     // of the weights
  UpdateRules rules = {};  // empty: according to `kind`
};
UpdateRules update_rules(const OptimizerSettings& settings);
std::shared_ptr<const ElementRule> make_adamw(const OptimizerSettings& settings);
std::shared_ptr<const MatrixRule> make_muon(const OptimizerSettings& settings);

// The distinct rules of the parameters that are trained, in parameter order.
std::vector<const UpdateRule*> rules_of(const ParameterSet& set, const UpdateRules& rules);

// The type of moments in a run of this precision.
DType moments_dtype(const OptimizerSettings& settings, DType precision);
// Of the stochastic rounding of moments in a step; 0: they are rounded to nearest.
std::uint64_t rounding_key(const OptimizerSettings& settings, std::int64_t step);

}  // namespace kintsugi
