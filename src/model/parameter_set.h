#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/config.h"
#include "model/slice.h"
#include "tensor/arena.h"

namespace kintsugi {

enum class ParameterGroup : std::uint8_t { Embedding, Attention, Mlp, Norm, Head };
inline constexpr int kParameterGroups = 5;
std::string_view to_string(ParameterGroup group);

enum class InitKind : std::uint8_t { Normal, Ones, Zeros };

// Which ranks have a share of the same gradient, beside those that train on other data.
enum class GradientSum : std::uint8_t {
  None,
  Tp,    // each tp rank saw other rows, or other heads
  Kv,    // the tp ranks that hold the same key and value heads
  Tied,  // the first stage has it as embedding, the last as head
};

struct Parameter {
  std::string name;   // the public (Hugging Face) name
  Shape shape;        // what is held here
  Shape global = {};  // as the public file has it
  ParameterGroup group;
  InitKind init = InitKind::Normal;
  double init_std = 0.0;
  TensorCut cut = {};
  int bucket = 0;
  bool decay = false;        // weight decay: matrices only
  bool overwritten = false;  // its gradient is one product: a step's first micro-batch writes it
  // Follows its predecessor in memory without a gap: the two are read as one matrix.
  bool packed = false;
  GradientSum sum = GradientSum::None;
  bool counted = true;      // stands for its copies on other ranks: in norms, in files
  std::int64_t offset = 0;  // first element in the flat buffers
};

// A contiguous range of the flat buffers that is reduced, gathered and stepped as one: decayed part
// first.
struct Bucket {
  enum class Role : std::uint8_t { Table, Embedding, Block, Head };
  Role role = Role::Block;  // Table: an embedding that another rank has as its head, or the reverse
  std::int64_t begin = 0;
  std::int64_t decay_end = 0;  // [begin, decay_end) decays, [decay_end, end) does not
  std::int64_t end = 0;
};

// Every parameter of a model, or of one rank's slice of it, in memory order. Checkpoints, sharding,
// export, counting and the planner read this; none has a list of its own.
class ParameterSet {
 public:
  explicit ParameterSet(const ModelConfig& config);
  ParameterSet(const ModelConfig& config, const ModelSlice& slice);

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
  void add(Parameter parameter) { parameters_.push_back(std::move(parameter)); }
  void add_outer(const ModelConfig& config, const ModelSlice& slice);
  void add_block(const ModelConfig& config, int layer);
  void cut(const ModelConfig& config, const ModelSlice& slice);
  void place(int layers);

  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::unordered_map<std::string, int> by_name_;
  int tp_rank_ = 0;
};

// Public names of the roles that layers ask for, e.g. {"q", "k", "v"} of layer 3; empty where the
// family has none.
struct BlockNames {
  std::vector<std::string> qkv_weight, qkv_bias;  // one name (packed in the file) or three
  std::string out_weight, out_bias;
  std::vector<std::string> up_weight, up_bias;  // gate and up for SwiGLU
  std::string down_weight, down_bias;
  std::string norm1_weight, norm1_bias, norm2_weight, norm2_bias;
  std::string q_norm_weight, k_norm_weight;
};
struct OuterNames {
  std::string embedding, positions, embedding_norm_weight, embedding_norm_bias;
  std::string final_norm_weight, final_norm_bias, head;  // head empty when tied
};
BlockNames block_names(const ModelConfig& config, int layer);
OuterNames outer_names(const ModelConfig& config);

// Where the weights and gradients of a model lie, bucket by bucket. Layers ask at every use: where
// a bucket is sharded, its memory comes and goes.
class ParameterStore {
 public:
  // Without memory yet.
  ParameterStore(const ParameterSet& set, DType dtype);
  // With memory for all of it, side by side. Generation and scoring need no gradients.
  ParameterStore(const ParameterSet& set, Arena& arena, DType dtype, bool with_gradients);

  // `flat` holds the bucket's elements in the set's order; empty: not there now.
  void place_weights(int bucket, Tensor flat) { places_[at(bucket)].weights = flat; }
  void place_gradients(int bucket, Tensor flat) { places_[at(bucket)].gradients = flat; }
  Tensor bucket_weights(int bucket) const { return places_[at(bucket)].weights; }
  Tensor bucket_gradients(int bucket) const { return places_[at(bucket)].gradients; }

  const ParameterSet& set() const { return *set_; }
  DType dtype() const { return dtype_; }
  // (buffer_elements), where the store was made with memory.
  Tensor weights() const { return weights_; }
  Tensor gradients() const { return gradients_; }  // accumulator precision
  Tensor weight(int index) const { return weight(index, (*set_)[index].shape); }
  Tensor gradient(int index) const { return gradient(index, (*set_)[index].shape); }
  // Several packed parameters as one tensor of the given shape, starting at `first`.
  Tensor weight(int first, Shape shape) const;
  Tensor gradient(int first, Shape shape) const;

 private:
  struct Place {
    Tensor weights, gradients;
  };
  static std::size_t at(int bucket) { return static_cast<std::size_t>(bucket); }
  Tensor slice(Tensor flat, int index, Shape shape) const;
  const ParameterSet* set_;
  DType dtype_;
  Tensor weights_;
  Tensor gradients_;
  std::vector<Place> places_;
};

}  // namespace kintsugi
