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
  struct Piece {
    Tensor gradients;     // owned; in host memory if they are offloaded
    Tensor squared_norm;  // takes its squares on the way back to host memory; may be none
  };
  struct Family {  // summed over one kind of group
    Communicator* group;
    std::vector<Piece> large = {};  // summed where they lie, or in staging_
    std::vector<Piece> small = {};  // packed first, to travel together
    Tensor packed = {};
  };
  static std::vector<Piece> owned_pieces(Sharding& sharding, GroupKind kind);
  void bring(Tensor here, const Piece& piece);
  void put_back(const Piece& piece, Tensor here);
  void sum_large(const Family& family);
  void sum_small(const Family& family);

  Backend* backend_;
  GradientOffload* offload_;
  std::vector<Family> families_;
  Tensor staging_;  // of gradients that are offloaded
};

}  // namespace kintsugi
