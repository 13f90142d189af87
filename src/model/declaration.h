#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameter_set.h"
#include "model/recompute.h"
#include "model/spec.h"

namespace kintsugi {

// The tokens of one micro-batch on one rank. In sequence parallelism a rank has only an equal part
// of the rows between the matrices.
struct BatchSize {
  std::int64_t sequences = 1;
  std::int64_t length = 0;
  int row_parts = 1;
  std::int64_t tokens() const { return sequences * length; }
  std::int64_t rows() const { return tokens() / row_parts; }
};

// What a tensor has one row for: every token, every row of the residual stream on this rank, or
// every sequence. Whole: it is not made of rows.
enum class Per : std::uint8_t { Token, Row, Sequence, Whole };

// A tensor that a layer asks for: (tokens or rows …, width); width 0: one number each.
struct TensorSpec {
  std::string_view label;
  Per per = Per::Token;
  std::int64_t width = 0;
  bool wide = false;  // accumulator precision
  // Of what the backward reads: the first mode that drops it.
  Recompute dropped_by = Recompute::Full;
  bool one_at_a_time = false;  // dropped, those of one label share their memory
  // Of workspace:
  bool training = false;         // only the backward needs it
  bool read_by_weights = false;  // by the second half of a backward, which may come much later
  // Bytes of memory that an operation arranges by itself, of micro-batches up to a size.
  using Bytes = std::int64_t(const BatchSize& size, DType dtype, bool training);
  std::function<Bytes> bytes = {};

  Shape shape(const BatchSize& size) const;
};

// What generation keeps of the tokens before.
struct CacheSpec {
  std::string_view label;
  std::int64_t per_token = 0, fixed = 0;  // elements
  bool wide = false;
};

// Handles of declared tensors.
struct Saved {
  int index = -1;
  Per per = Per::Token;
};
struct Workspace {
  int index = -1;
  Per per = Per::Token;
};

// Forward floating-point operations per token, of the whole model; multiply-add counts 2.
struct LayerFlops {
  double linear = 0;         // matmuls with parameters
  double mixing_causal = 0;  // between tokens: attention's half below the diagonal
  double mixing_full = 0;    // the whole square
};

// The ranks that compute a layer together, and which of those that share its matrices declares.
struct LayerRanks {
  int tensor = 1;
  int tensor_rank = 0;
  bool sequence_parallel = false;
  int context = 1;
};

// Filled by layers, which are the only ones who know what they need; read by ParameterSet, the
// memory of a stage, checkpoints, FLOP counts and the planner.
class Declaration {
 public:
  // `set`: parameters are looked up in it, so that their handles are its indices.
  explicit Declaration(const LayerRanks& ranks, std::int64_t length = 0,
                       const ParameterSet* set = nullptr)
      : ranks_(ranks), length_(length), set_(set) {}

  const LayerRanks& ranks() const { return ranks_; }
  std::int64_t length() const { return length_; }  // of a sequence, for FLOPs

  // How a parameter is sharded among the tensor ranks.
  struct Cut {
    enum class Along : std::uint8_t { None, Outputs, Inputs };
    Along along = Along::None;
    int parts = 1;
    int copies = 1;        // neighbouring ranks that hold the same shard
    bool partial = false;  // not sharded, but each rank has only its share of the gradient
  };
  struct Options {
    ParameterGroup group;
    Init init;
    Cut cut = {};
    bool in_out = false;
    bool packed = false;  // read as one matrix with the parameter before
  };
  int matrix(std::string name, std::int64_t outputs, std::int64_t inputs, const Options& options);
  int vector(std::string name, std::int64_t extent, const Options& options);
  // A table of rows, sharded by rows or not at all.
  int table(std::string name, std::int64_t rows, std::int64_t width, const Options& options);

  Saved saved(const TensorSpec& spec);
  Workspace workspace(const TensorSpec& spec);
  void cache(const CacheSpec& spec) { caches_.push_back(spec); }
  void mixing(double causal, double full) {
    flops_.mixing_causal += causal;
    flops_.mixing_full += full;
  }

  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<TensorSpec>& saved() const { return saved_; }
  const std::vector<TensorSpec>& workspace() const { return workspace_; }
  const std::vector<CacheSpec>& caches() const { return caches_; }
  const LayerFlops& flops() const { return flops_; }
  // Of the parameters, in the order of their declaration, each once.
  std::vector<int> buckets() const;
  int last() const { return ids_.back(); }

 private:
  int add(Parameter parameter, const Cut& cut);

  LayerRanks ranks_;
  std::int64_t length_;
  const ParameterSet* set_;
  std::vector<Parameter> parameters_;
  std::vector<int> ids_;
  std::vector<TensorSpec> saved_, workspace_;
  std::vector<CacheSpec> caches_;
  LayerFlops flops_;
};

}  // namespace kintsugi
