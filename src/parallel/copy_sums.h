#pragma once

#include <vector>

#include "parallel/sharding.h"

namespace kintsugi {

// Parameters of which several ranks hold a copy and a share of the gradient: norms whose rows are
// split, key and value heads with more ranks than heads, an embedding tied to a head on another
// stage. Their gradients are summed once per step, when they are already sums over the data ranks,
// and only where they are owned.
class CopySums {
 public:
  CopySums(Backend& backend, Arena& arena, Sharding& sharding, const Groups& groups);

  // After Sharding::finish_gradients.
  void run();

 private:
  struct Family {  // one kind of copies
    GradientSum kind;
    Communicator* group;
    std::vector<Tensor> large = {};  // summed where they lie
    std::vector<Tensor> small = {};  // packed first, to travel together
    Tensor packed = {};
  };
  void pack(const Family& family, bool back);

  Backend* backend_;
  std::vector<Family> families_;
};

}  // namespace kintsugi
