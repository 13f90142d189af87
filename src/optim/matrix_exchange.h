#pragma once

#include <cstdint>
#include <vector>

#include "optim/optimizer_state.h"
#include "optim/update_rule.h"

namespace kintsugi {

// Which rank transforms which matrices of a MatrixRule, and when. All ranks with the same layers
// compute the same plan.

// Parameters that one rank transforms at once: their matrices have the same shape.
using MatrixBatch = std::vector<int>;  // indices in the set
// What all ranks transform at the same time, by owner; a batch may be empty.
using MatrixRound = std::vector<MatrixBatch>;

// The matrices of a parameter, of which all have the same shape.
struct MatrixShape {
  std::int64_t rows = 0, columns = 0, count = 1;
  bool operator==(const MatrixShape&) const = default;
};
MatrixShape matrix_shape(const Parameter& parameter);

// Gives each parameter of the rule with these data groups to one of `owners` ranks, so that the
// most loaded one has as few FLOPs as possible (largest first, to the least loaded). A batch has at
// most `most` elements, or one parameter.
std::vector<MatrixRound> plan_matrices(const ParameterSet& set, const UpdateRules& rules,
                                       const MatrixRule& rule, const DataGroups& data, int owners,
                                       std::int64_t most);

// Elements that a rank owns of a parameter, and where their direction is in a buffer.
struct MatrixRange {
  MatrixShape shape;                     // of the parameter's matrices
  Tensor weight, gradient, master, ema;  // master, ema: may be empty
  std::vector<Tensor> slots = {};
  std::int64_t first_element = 0;
  bool decays = false;
  std::int64_t at = -1;  // -1: its direction is not needed on this rank
  std::int64_t size() const { return weight.elements(); }
};

// The part of a whole matrix that one tp rank holds: where it is in the rank's shard of the
// parameter, and where in the batch of whole matrices.
struct MatrixShard {
  std::int64_t shard_at = 0;           // of the shard, in the buffer of shards
  Shape shard = {};                    // of the shard: (rows, matrices, columns)
  std::int64_t part = 0;               // index of the matrix in the shard
  std::int64_t matrix = 0;             // index of the matrix in the batch
  int dimension = -1;                  // that is sharded; -1: the shard has the whole matrix
  std::int64_t first = 0, extent = 0;  // range of that dimension
};

// One round of an update, as one rank sees it. The steps are in the order of the members.
struct MatrixExchange {
  struct Move {
    std::int64_t from = 0, to = 0, count = 0;
  };
  std::vector<MatrixRange> momenta = {};    // everything that this rank owns of the round
  ExchangeCounts to_owners = {};            // in the shard group: pieces of directions
  std::vector<Move> join = {};              // pieces to shards
  ExchangeCounts to_owner = {};             // in the tp group: shards
  std::vector<MatrixShard> assembled = {};  // shards to whole matrices
  MatrixShape shape = {};                   // of this rank's matrices
  std::int64_t matrices = 0;                // how many; 0: it transforms none in this round
  std::vector<MatrixShard> returned = {};   // whole matrices to shards
  ExchangeCounts from_owner = {};           // in the tp group: shards
  std::vector<Move> split = {};             // shards to pieces
  ExchangeCounts from_owners = {};          // in the shard group: pieces of results
  // What this rank applies: results of one replica, in blocks. `at` of a piece counts from the
  // start of the block.
  struct Results {
    int replica = 0;
    std::int64_t first = 0, count = 0;  // elements of the replica's results
    std::vector<MatrixRange> pieces = {};
  };
  std::vector<Results> results = {};
};

struct MatrixLimits {
  std::int64_t batch = 0;  // elements of a batch of matrices
  std::int64_t block = 0;  // elements of results that replicas send at a time
  std::int64_t piece = 0;  // elements of a piece
};

// The rounds of an update on this rank.
std::vector<MatrixExchange> plan_exchanges(const Sharding& sharding, const OptimizerState& state,
                                           const UpdateRules& rules, const MatrixRule& rule,
                                           const DataGroups& data, const MatrixLimits& limits);

}  // namespace kintsugi
