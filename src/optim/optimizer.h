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

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;         // on matrices only
  double clip = 1.0;                 // global gradient norm; 0: none
  DType moments = DType::F32;        // bf16 halves the optimizer's memory; fp64 runs keep fp64
  bool stochastic_rounding = false;  // of bf16 moments
  std::uint64_t seed = 0;            // of that rounding
};

// AdamW over what this rank owns of each bucket: fp32 master weights and moments beside 16-bit
// weights, in place for fp32 and fp64.
class Optimizer {
 public:
  Optimizer(Backend& backend, Arena& arena, Sharding& sharding, const AdamWSettings& settings,
            const StateOffload& offload = {});
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void zero_state();  // master copy and moments
  // Clips and applies the finished gradients, which were scaled by 1 / unscale, and lets the others
  // know.
  // `step` counts from 1. If the gradient norm is not finite, nothing changes.
  void step(std::int64_t step, double lr, double unscale);
  // The squared norm of the gradients before `unscale`: (1), on the device.
  Tensor squared_norm() const { return squared_norm_; }

  // Of a bucket, what this rank owns; in host memory if it is offloaded.
  Tensor master(int bucket) const;  // the weights themselves when they need no copy
  Tensor moment1(int bucket) const { return owned(state_.moment1, bucket); }
  Tensor moment2(int bucket) const { return owned(state_.moment2, bucket); }
  bool has_master() const { return static_cast<bool>(state_.master); }
  // Where offloaded state is updated; Auto until that is known.
  UpdatePlace update_place() const { return place_; }
  // Whether weights change when they are read first: Sharding::on_reading.
  bool updates_late() const { return streamed_.has_value(); }

 private:
  Tensor owned(const Tensor& flat, int bucket) const;
  std::size_t pieces_ahead(std::int64_t most) const;
  void sum_squares();
  void update(UpdatePlace place, const UpdateStep& step);
  void update_in_place(const UpdateStep& step);
  void update_until(int bucket);
  // One of the steps that decide where updates happen.
  void try_update(const UpdateStep& step);

  Backend* backend_;
  Sharding* sharding_;
  AdamWSettings settings_;
  UpdatePlace place_;
  std::vector<std::int64_t> offsets_;  // of each bucket in the state
  OptimizerState state_;
  std::vector<UpdatePiece> pieces_;
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
