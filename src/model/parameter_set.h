#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/grid.h"
#include "model/slice.h"
#include "model/spec.h"

namespace kintsugi {

enum class ParameterGroup : std::uint8_t { Embedding, Attention, Retention, Mlp, Norm, Head };
inline constexpr int kParameterGroups = 6;
std::string_view to_string(ParameterGroup group);

// The ranks that train a parameter on other data.
struct DataGroups {
  GroupKind shard = GroupKind::Shard;      // share one sharded copy of it
  GroupKind replica = GroupKind::Replica;  // hold the same shard
  auto operator<=>(const DataGroups&) const = default;
};

// How a parameter follows from its gradient: optim/update_rule.h.
enum class UpdateRuleKind : std::uint8_t { AdamW };

struct Parameter {
  std::string name;  // the public (Hugging Face) name
  Shape shape = {};  // what is held here
  Shape global;      // as the public file has it
  ParameterGroup group;
  Init init = {};
  TensorCut cut = {};
  int bucket = 0;
  UpdateRuleKind rule = UpdateRuleKind::AdamW;
  bool decay = false;        // weight decay: matrices only
  bool overwritten = false;  // its gradient is one product: a step's first micro-batch writes it
  // Follows its predecessor in memory without a gap: the two are read as one matrix.
  bool packed = false;
  // Who has a share of the same gradient, beside those that train on other data: tp ranks that saw
  // other rows or heads, those with the same key and value heads, the other stage that has it.
  std::vector<GroupKind> sum_over = {};
  DataGroups data = {};
  bool counted = true;      // stands for its copies on other ranks: in norms, in files
  std::int64_t offset = 0;  // first element in the flat buffers
};

// A contiguous range of the flat buffers that is reduced, gathered and stepped as one: decayed part
// first. Its parameters have the same data groups.
struct Bucket {
  enum class Role : std::uint8_t { Table, Embedding, Block, Head };
  Role role = Role::Block;  // Table: an embedding that another rank has as its head, or the reverse
  int layer = -1;           // of a block
  DataGroups data = {};
  std::int64_t begin = 0;
  std::int64_t decay_end = 0;  // [begin, decay_end) decays, [decay_end, end) does not
  std::int64_t end = 0;
};

// Every parameter of a model, or of one rank's slice of it, in memory order, as the layers declare
// them. Checkpoints, sharding, export, counting and the planner read this; none has a list of its
// own.
class ParameterSet {
 public:
  explicit ParameterSet(const ModelConfig& config);
  // `data` says in which groups a parameter is trained; none: all in those of DataGroups.
  using DataGroupsOf = std::function<DataGroups(const Parameter&)>;
  ParameterSet(const ModelConfig& config, const ModelSlice& slice, const DataGroupsOf& data = {});

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int index(std::string_view name) const;  // throws Failure when there is none
  const Parameter& operator[](int index) const { return parameters_[index]; }
  // Of dimension 0, where it is cut as one part.
  RowRange rows(int index) const {
    return rows_of(parameters_[index].cut, parameters_[index].global, tp_rank_);
  }
  int tp_rank() const { return tp_rank_; }
  std::int64_t elements() const;  // true parameters of the slice
  std::int64_t buffer_elements() const {
    return buckets_.back().end;
  }  // with padding between tensors

 private:
  void collect(const ModelSpec& model, const ModelSlice& slice);
  void place(int layers);

  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::unordered_map<std::string, int> by_name_;
  int tp_rank_ = 0;
};

}  // namespace kintsugi
