#pragma once

#include <vector>

#include "parallel/sharding.h"

namespace kintsugi {

// All-reduces the gradients of parameters of which several ranks hold a copy and a partial
// gradient: norms with sequence parallelism, key and value heads if there are more tp ranks than
// heads, and an embedding tied to a head on another stage. Runs once per step, after the reduction
// over the data ranks, and only on the gradients that this rank owns.
class CopySums {
 public:
  CopySums(Backend& backend, Arena& arena, Sharding& sharding, const Groups& groups);

  // Call after Sharding::finish_gradients().
  void run();

 private:
  struct OwnedGradient {
    Tensor gradients;  // in host memory if gradients are offloaded
    Tensor
        squared_norm;  // offload only: the squares of the final sum are added to it; may be empty
  };
  struct GroupGradients {  // reduced over one group
    Communicator* group;
    std::vector<OwnedGradient> large = {};  // reduced in place, or in staging_
    std::vector<OwnedGradient> small = {};  // packed into one message
    Tensor packed = {};
  };
  static std::vector<OwnedGradient> owned_gradients(Sharding& sharding, GroupKind kind);
  void copy_in(Tensor device, const OwnedGradient& owned);
  void copy_out(const OwnedGradient& owned, Tensor device);
  void reduce_large(const GroupGradients& group);
  void reduce_small(const GroupGradients& group);

  Backend* backend_;
  GradientOffload* offload_;
  std::vector<GroupGradients> groups_;
  Tensor staging_;  // device buffer for offloaded gradients
};

}  // namespace kintsugi
