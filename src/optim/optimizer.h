#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "optim/matrix_updates.h"
#include "optim/offloaded_update.h"
#include "optim/skip_step.h"
#include "parallel/sharding.h"

namespace kintsugi {

// Updates the elements of each bucket that this rank owns. Each parameter has its update rule;
// gradient clipping is global.
class Optimizer {
 public:
  Optimizer(Backend& backend, Arena& arena, Sharding& sharding, const OptimizerSettings& settings,
            const StateOffload& offload = {});
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void zero_state() { state_.zero(*backend_); }
  // Multiplies the finished gradients by `unscale`, clips and applies them, and has the other
  // ranks' copies of the weights updated. `step` counts from 1. If the gradient norm is not finite,
  // or if it or the loss is above its limit, nothing changes. `loss` (1) is on the device and the
  // same on all ranks; it is read only with a limit.
  void step(std::int64_t step, double lr, double unscale, const StepLimits& limits = {},
            Tensor loss = {});
  // The squared norm of the gradients, before `unscale`: (1), on the device.
  Tensor squared_norm() const { return squared_norm_; }
  // What the last step multiplied the gradients by: (1), on the device. Not finite: it was skipped.
  Tensor scale() const { return scale_; }

  const UpdateRules& rules() const { return rules_; }
  const OptimizerState& state() const { return state_; }  // in host memory if offloaded
  // Where offloaded state is updated; Auto until that is decided.
  UpdateLocation update_location() const { return location_; }
  // Whether weights are updated when they are first read: Sharding::set_late_update.
  bool updates_late() const { return streamed_.has_value(); }

 private:
  std::size_t blocks_ahead(std::int64_t most) const;
  void find_blocks_of_buckets();
  void sum_squares();
  void update(UpdateLocation location, const UpdateStep& step);
  void update_until(int bucket);
  // Times one update; decides on the update location after the last trial.
  void try_update(const UpdateStep& step);

  Backend* backend_;
  Sharding* sharding_;
  double clip_;
  EmaOptions ema_;
  UpdateRules rules_;
  UpdateLocation location_;
  OptimizerState state_;
  std::vector<UpdateBlock> blocks_;
  std::vector<std::size_t> blocks_until_;  // by bucket: number of blocks up to its end
  // The squared norm of the parameters with the same data groups. All but those with the default
  // groups are first summed over their shard group.
  struct Norm {
    Communicator* shard;            // null: the default groups
    Tensor squares;                 // (1)
    std::vector<Tensor> gradients;  // that count: Sharding::counted_gradients()
    bool adds;                      // to the norm of the whole model
  };
  std::vector<Norm> norms_;
  Tensor squared_norm_, scale_;                           // (1)
  std::vector<std::unique_ptr<MatrixUpdates>> matrices_;  // by MatrixRule
  std::optional<StreamedUpdate> streamed_;
  std::optional<HostUpdate> on_host_;
  int tried_ = 0;                       // updates that were timed
  std::array<double, 2> seconds_ = {};  // time of an update on the device and on the host
};

}  // namespace kintsugi
