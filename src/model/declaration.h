#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameter_set.h"
#include "model/spec.h"

namespace kintsugi {

// What a block drops after its forward and recomputes in its backward. (Attention scores are never
// saved.) Selective: norm outputs and MLP activations, which need no matmul. Full: everything but
// the block's input.
enum class Recompute : std::uint8_t { None, Selective, Full };
std::string_view to_string(Recompute recompute);
Recompute parse_recompute(std::string_view text);

// The tokens of one micro-batch on one rank. With sequence parallelism, the rows of the residual
// stream are split evenly over `row_parts` ranks.
struct BatchSize {
  std::int64_t sequences = 1;
  std::int64_t length = 0;
  int row_parts = 1;
  std::int64_t tokens() const { return sequences * length; }
  std::int64_t rows() const { return tokens() / row_parts; }
};

// What a tensor has rows per: token, row of the residual stream on this rank, or sequence. Bounded:
// at most so many rows per token (TensorSpec::most), of which the layer uses the first ones. Whole:
// the tensor has no rows, only its width.
enum class Per : std::uint8_t { Token, Row, Sequence, Bounded, Whole };

// A tensor that a layer requests: (tokens, rows or sequences; width). Width 0: one number each.
struct TensorSpec {
  std::string_view label;
  Per per = Per::Token;
  std::int64_t width = 0;
  std::int64_t most = 1;  // Per::Bounded: rows per token
  bool wide = false;      // accumulator precision
  bool indices = false;   // int32
  // Saved tensors: the first recompute mode that drops it.
  Recompute dropped_by = Recompute::Full;
  // If dropped, or in workspace: all tensors with this label share one buffer.
  bool one_at_a_time = false;
  bool temporary = false;  // saved only until the next layer: its reader keeps what it needs
  bool kept = false;       // it is never dropped
  // Workspace only:
  bool training = false;         // only the backward needs it
  bool read_by_weights = false;  // backward_weight(), which may run much later, reads it
  // Bytes of memory with a layout private to the operation, for micro-batches up to a size.
  using Bytes = std::int64_t(const BatchSize& size, DType dtype, bool training);
  std::function<Bytes> bytes = {};

  Shape shape(const BatchSize& size) const;
};

// A tensor that generation keeps from token to token (KV cache, retention state).
struct CacheSpec {
  std::string_view label;
  std::int64_t per_token = 0, fixed = 0;  // elements
  bool wide = false;
  std::int64_t queries = 0;  // per_token only: the heads that read each key head
};

// What a layer reads of the tables that all layers of a rank share (PositionTables).
struct PositionSpec {
  std::optional<RopeSpec> rope = {};
  std::int64_t slopes = 0, decays = 0;  // the heads of this rank that have one
};

// The heads of this rank that attend to tokens of other context ranks (ContextAttention).
struct ContextHeads {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  bool operator==(const ContextHeads&) const = default;
};

// A sum over the step.
struct SumSpec {
  std::string_view name;
  double factor = 1;
};

// Handles of declared tensors.
struct Saved {
  int index = -1;
  Per per = Per::Token;
  std::int64_t most = 1;
};
struct Workspace {
  int index = -1;
  Per per = Per::Token;
  std::int64_t most = 1;
};

// Forward floating-point operations per token, summed over all tensor ranks. A multiply-add
// counts 2.
struct LayerFlops {
  double linear = 0;         // matmuls with parameters
  double mixing_causal = 0;  // between tokens: attention's half below the diagonal
  double mixing_full = 0;    // the full square
};

// How tokens come to experts on other data ranks: all of them, or those that chose one of a rank.
enum class Dispatch : std::uint8_t { AllGather, AllToAll };
std::string_view to_string(Dispatch dispatch);
Dispatch parse_dispatch(std::string_view text);

// The ranks that compute a layer together, and the tensor rank whose shard is declared.
struct LayerRanks {
  int tensor = 1;
  int tensor_rank = 0;
  bool sequence_parallel = false;
  int context = 1;
  int experts = 1;  // data ranks that hold different experts, of which this is one
  int experts_rank = 0;
  Dispatch dispatch = Dispatch::AllGather;
  bool splits_rows() const { return sequence_parallel && tensor > 1; }
};

// Lists the parameters and buffers of a layer. Layers fill it; ParameterSet, the memory of a stage,
// checkpoints, FLOP counts and the planner read it.
class Declaration {
 public:
  // With `set`, the handles of parameters are their indices in it.
  explicit Declaration(const LayerRanks& ranks, std::int64_t length = 0,
                       const ParameterSet* set = nullptr)
      : ranks_(ranks), length_(length), set_(set) {}

  const LayerRanks& ranks() const { return ranks_; }
  std::int64_t length() const { return length_; }  // tokens per sequence, for FLOPs

  // How a parameter is sharded among the tensor ranks.
  struct Shard {
    enum class Along : std::uint8_t { None, Outputs, Inputs, Matrices };
    Along along = Along::None;
    int parts = 1;
    int copies = 1;        // neighbouring ranks that hold the same shard
    bool partial = false;  // not sharded, but each rank computes only a partial gradient
  };
  struct Options {
    ParameterGroup group;
    Init init;
    Shard shard = {};
    DataGroups data = {};
    bool in_out = false;
    bool packed = false;  // forms one matrix with the preceding parameter
    bool hidden = false;  // Parameter::hidden
    bool wide = false;    // Parameter::wide
    // The outputs belong to so many matrices (MatrixParts).
    int matrices = 1;
    std::int64_t turn = 0;
  };
  int matrix(std::string name, std::int64_t outputs, std::int64_t inputs, const Options& options);
  // Matrices (outputs, inputs) that are stored one after the other, as experts: a stack (count,
  // outputs, inputs) in memory. A token uses the part `used` of them. Along::Matrices: each rank
  // has as many, in order, first the tensor ranks of the first of the ranks with experts: those of
  // other data ranks are not declared. Returns this rank's first.
  int stack(const std::vector<std::string>& names, std::int64_t outputs, std::int64_t inputs,
            double used, const Options& options);
  int vector(std::string name, std::int64_t extent, const Options& options);
  // A table of rows, sharded by rows or not sharded.
  int table(std::string name, std::int64_t rows, std::int64_t width, const Options& options);

  // Marks a matrix and those that are packed with it as read by fp8 matmuls, which read a stack of
  // so many matrices. The first of a stack is this rank's first, as stack() returns it.
  void use_fp8(int matrix, std::int64_t stacked = 1);
  bool is_trained(int parameter) const;  // true if there is no set yet
  Saved saved(const TensorSpec& spec);
  Workspace workspace(const TensorSpec& spec);
  void cache(const CacheSpec& spec) { caches_.push_back(spec); }
  void positions(const PositionSpec& spec) { positions_.push_back(spec); }
  void context_heads(const ContextHeads& heads) { context_heads_.push_back(heads); }
  // A sum over the step that the layer adds to (LayerSums), whose mean times the factor is a value
  // of the step. Layers may share one.
  void sum(std::string_view name, double factor = 1) { sums_.push_back({name, factor}); }
  void mixing(double causal, double full) {
    flops_.mixing_causal += causal;
    flops_.mixing_full += full;
  }

  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<TensorSpec>& saved() const { return saved_; }
  const std::vector<TensorSpec>& workspace() const { return workspace_; }
  const std::vector<CacheSpec>& caches() const { return caches_; }
  const std::vector<PositionSpec>& positions() const { return positions_; }
  const std::vector<ContextHeads>& context_heads() const { return context_heads_; }
  const std::vector<SumSpec>& sums() const { return sums_; }
  const LayerFlops& flops() const { return flops_; }
  // The buckets of the declared parameters, in order of declaration, without duplicates.
  std::vector<int> buckets() const;
  int last() const { return ids_.back(); }

 private:
  int add(Parameter parameter, const Options& options);

  LayerRanks ranks_;
  std::int64_t length_;
  const ParameterSet* set_;
  std::vector<Parameter> parameters_;
  std::vector<int> ids_;
  std::vector<TensorSpec> saved_, workspace_;
  std::vector<CacheSpec> caches_;
  std::vector<PositionSpec> positions_;
  std::vector<ContextHeads> context_heads_;
  std::vector<SumSpec> sums_;
  LayerFlops flops_;
};

}  // namespace kintsugi
