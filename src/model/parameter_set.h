#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/grid.h"
#include "model/shard.h"
#include "model/spec.h"

namespace kintsugi {

enum class ParameterGroup : std::uint8_t {
  Embedding,
  Attention,
  Retention,
  Mlp,
  Router,
  Experts,
  Norm,
  Head,
  Adapter
};
inline constexpr int kParameterGroups = 9;
std::string_view to_string(ParameterGroup group);

// The ranks that train the same parameter on other data.
struct DataGroups {
  GroupKind shard = GroupKind::Shard;      // ranks that hold one copy, sharded by ZeRO
  GroupKind replica = GroupKind::Replica;  // ranks that hold the same shard
  auto operator<=>(const DataGroups&) const = default;
};

// The matrices that a parameter of two dimensions consists of: index i of `dimension` belongs to
// matrix (i / turn) % count. GPT-2 and BLOOM store q, k and v as one parameter.
struct MatrixParts {
  int dimension = 0;
  int count = 1;
  std::int64_t turn = 0;  // 0: the matrices are stored one after the other
};

struct Parameter {
  std::string name;  // the public (Hugging Face) name
  Shape shape = {};  // of this rank's shard
  Shape global;      // of the whole parameter, as in the Hugging Face file
  ParameterGroup group = {};
  Init init = {};
  TensorShard shard = {};
  int bucket = 0;
  MatrixParts matrices = {};
  bool trained = true;       // false: it has neither a gradient nor optimizer state
  bool decay = false;        // a matrix, which weight decay applies to (UpdateRule::decays)
  bool overwritten = false;  // its gradient is one matmul: a step's first micro-batch overwrites it
  // Stored directly after its predecessor: the two form one matrix.
  bool packed = false;
  bool fp8 = false;          // a matrix that fp8 matmuls read, perhaps together with packed ones
  std::int64_t stacked = 1;  // with fp8: it and the packed ones are so many matrices, not one
  bool hidden = false;       // a matrix between activations of layers: neither embedding nor head
  // Stored in accumulator precision in every run and its files, and not trained by gradients: the
  // layer's buffer in transformers, which does not count it as a parameter.
  bool wide = false;
  // Groups that hold partial gradients of it, besides the data groups: tp ranks with other rows or
  // heads, tp ranks with the same key and value heads, or the other stage that has the tied table.
  std::vector<GroupKind> sum_over = {};
  DataGroups data = {};
  double used = 1;          // the part of the tokens that use it, if experts are chosen alike
  double flops = 0;         // of its forward matmul, per token
  bool counted = true;      // of several identical copies, this one goes into norms and files
  std::int64_t offset = 0;  // first element in the flat buffers
};

// A contiguous range of the flat buffers that is reduced, gathered and updated as a unit.
// Parameters with weight decay come first. All parameters have the same data groups; all are
// trained or none is; fp8 matmuls read all or none; all are wide or none is.
struct Bucket {
  enum class Role : std::uint8_t { Table, Embedding, Block, Head };
  Role role = Role::Block;  // Table: a tied table whose other copy is on another stage
  int layer = -1;           // Role::Block only
  DataGroups data = {};
  bool trained = true;
  bool fp8 = false;
  bool wide = false;
  std::int64_t begin = 0;
  std::int64_t decay_end = 0;  // weight decay applies to [begin, decay_end)
  std::int64_t end = 0;
};

// All parameters of a model, or of one rank's shard of it, in memory order. The layers declare
// them. Checkpoints, sharding, export, parameter counts and the planner all use this list.
class ParameterSet {
 public:
  explicit ParameterSet(const ModelConfig& config);
  // `data` returns the data groups of a parameter; empty: all have the default groups.
  using DataGroupsOf = std::function<DataGroups(const Parameter&)>;
  ParameterSet(const ModelConfig& config, const ModelShard& shard, const DataGroupsOf& data = {});
  // `model` is that of `config`: for those who need many shards.
  ParameterSet(const ModelConfig& config, const ModelSpec& model, const ModelShard& shard,
               const DataGroupsOf& data = {});

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int index(std::string_view name) const;  // throws Failure if there is no such parameter
  const Parameter& operator[](int index) const { return parameters_[index]; }
  // This rank's rows of a parameter that is sharded along dimension 0 as one part, or not sharded.
  RowRange rows(int index) const {
    return rows_of(parameters_[index].shard, parameters_[index].global, tp_rank_);
  }
  int tp_rank() const { return tp_rank_; }
  std::int64_t elements() const;                                        // without padding
  std::int64_t buffer_elements() const { return buckets_.back().end; }  // with padding

 private:
  void collect(const ModelSpec& model, const ModelShard& shard);
  void assign_offsets(int layers);

  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::unordered_map<std::string, int> by_name_;
  int tp_rank_ = 0;
};

}  // namespace kintsugi
