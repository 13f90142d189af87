#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "optim/offloaded_update.h"
#include "optim/state_offload.h"
#include "parallel/sharding.h"

namespace kintsugi {

// Updates what this rank owns of each bucket, every parameter by its rule, with one clipping factor
// for all.
class Optimizer {
 public:
  Optimizer(Backend& backend, Arena& arena, Sharding& sharding, const OptimizerSettings& settings,
            const StateOffload& offload = {});
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void zero_state() { state_.zero(*backend_); }
  // Clips and applies the finished gradients, which were scaled by 1 / unscale, and lets the others
  // know.
  // `step` counts from 1. If the gradient norm is not finite, nothing changes.
  void step(std::int64_t step, double lr, double unscale);
  // The squared norm of the gradients before `unscale`: (1), on the device.
  Tensor squared_norm() const { return squared_norm_; }

  const UpdateRules& rules() const { return rules_; }
  const OptimizerState& state() const { return state_; }  // in host memory if it is offloaded
  // Where offloaded state is updated; Auto until that is known.
  UpdatePlace update_place() const { return place_; }
  // Whether weights change when they are read first: Sharding::on_reading.
  bool updates_late() const { return streamed_.has_value(); }

 private:
  std::size_t pieces_ahead(std::int64_t most) const;
  void find_pieces_of_buckets();
  void sum_squares();
  void update(UpdatePlace place, const UpdateStep& step);
  void update_until(int bucket);
  // One of the steps that decide where updates happen.
  void try_update(const UpdateStep& step);

  Backend* backend_;
  Sharding* sharding_;
  double clip_;
  UpdateRules rules_;
  UpdatePlace place_;
  OptimizerState state_;
  std::vector<UpdatePiece> pieces_;
  std::vector<std::size_t> pieces_until_;  // by bucket: those that hold it and the ones before it
  // Of the parameters with the same data groups. Those with the usual ones are summed in
  // squared_norm_ itself; of others every shard group makes a sum of its own first.
  struct Norm {
    Communicator* shard;         // none: the usual
    Tensor squares;              // (1)
    std::vector<Tensor> pieces;  // of gradients that count
  };
  std::vector<Norm> norms_;
  Tensor squared_norm_, scale_;  // (1)
  std::optional<StreamedUpdate> streamed_;
  std::optional<HostUpdate> on_host_;
  // Of the trial: how many updates it has made, and the seconds that each place took.
  int tried_ = 0;
  std::array<double, 2> seconds_ = {};
};

}  // namespace kintsugi
