#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "optim/matrix_exchange.h"
#include "optim/offloaded_update.h"

namespace kintsugi {

// Updates the parameters of a MatrixRule. Their elements and state are sharded by tensor
// parallelism and ZeRO without regard to matrices. Each matrix has one owner among the ranks that
// train its layer. In a round every rank updates momenta and sends their directions to the owners,
// the owners transform whole matrices, and the results return to the ranks that hold the elements.
// So each matrix is transformed once, as a whole, in every layout. Directions travel over the shard
// group and then over the tp group; results return the same way, and are then broadcast to the
// other replicas.
class MatrixUpdates {
 public:
  MatrixUpdates(Backend& backend, Arena& arena, const Sharding& sharding,
                const OptimizerState& state, const UpdateRules& rules, const MatrixRule& rule,
                const DataGroups& data, const StateOffload& offload);

  // Uses the gradients that this rank owns. Operations queued later see the new weights.
  void run(const UpdateStep& step);

 private:
  // Device memory for offloaded state and gradients of one piece.
  struct Staging {
    Tensor gradient, master, ema;
    std::vector<Tensor> slots;
    std::array<Backend::Transfer, 4> to_device = {}, to_host = {};
  };
  // A piece's tensors on the device.
  struct OnDevice {
    Tensor gradient, master, ema;
    std::array<Tensor, 2> slots;
  };

  void allocate(Arena& arena, const OptimizerState& state, const StateOffload& offload);
  void allocate_staging(Arena& arena, const OptimizerState& state, const StateOffload& offload);
  void update_momenta(const MatrixExchange& round);
  void send_to_owners(const MatrixExchange& round);
  void transform(const MatrixExchange& round);
  void return_to_holders(const MatrixExchange& round);
  void apply_updates(const MatrixExchange& round);
  void apply(const std::vector<MatrixRange>& pieces, Tensor directions);
  void exchange(GroupKind group, const ExchangeCounts& counts);
  void move(const std::vector<MatrixExchange::Move>& moves);
  UpdateOptions options_of(const MatrixRange& piece) const;
  void fetch(const MatrixRange& piece, Staging& to, bool applies);
  void put_back(const MatrixRange& piece, Staging& from, bool applies);
  OnDevice on_device(const MatrixRange& piece, const Staging& staging) const;
  // Calls use(piece, tensors on the device). `applies`: it uses the master weights, otherwise
  // slots and gradient.
  void for_each_piece(const std::vector<MatrixRange>& pieces, bool applies, const auto& use);

  Tensor in() const { return buffers_[current_]; }
  Tensor out() const { return buffers_[1 - current_]; }
  void turn() { current_ = 1 - current_; }

  Backend* backend_;
  const Groups* groups_;
  const MatrixRule* rule_;
  DataGroups data_;  // of the parameters
  DType dtype_;      // of directions
  StateOffload offload_;
  std::vector<MatrixExchange> rounds_;
  std::array<Tensor, 2> buffers_;  // every step reads one of them and writes the other
  std::size_t current_ = 0;
  std::array<Tensor, 2> squares_;
  Tensor squared_norms_;
  Tensor received_;  // a block of another replica's results
  std::array<Staging, 2> staging_;
  UpdateStep step_;
};

}  // namespace kintsugi
