#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/config.h"

namespace kintsugi {

// What a model is made of, with the public names of its parameters: families write it, sublayers
// are built from it. Sizes are those of the whole model.

enum class NormKind : std::uint8_t { Rms, Layer };
enum class ActivationKind : std::uint8_t { Gelu, Swiglu };
enum class InitKind : std::uint8_t { Normal, Uniform, Ones, Zeros };

// Normal: the standard deviation. Uniform: values in [-scale, scale).
struct Init {
  InitKind kind = InitKind::Normal;
  double scale = 0.0;
};

struct NormSpec {
  NormKind kind = NormKind::Rms;
  double eps = 1e-5;
  std::string name;  // of the parameters, without .weight and, for LayerNorm, .bias
};

// y = x W^T + b. Several matrices with the same input are read as one.
struct LinearSpec {
  std::vector<std::string> weights = {};
  std::vector<std::string> biases = {};  // none, or one for each
  std::vector<std::int64_t> outputs = {};
  std::int64_t inputs = 0;
  bool in_out = false;  // stored [in, out] (GPT-2's Conv1D) instead of [out, in]
  int parts = 1;        // of the outputs of one matrix; each is sharded by itself
  std::vector<Init> init = {};
};

// The rotation of pairs of a head's dimensions by their position.
struct RopeSpec {
  std::int64_t dim = 0;
  double theta = 10000.0;
  std::optional<RopeScaling> scaling = {};
  // RetNet's: adjacent pairs instead of halves, and the slowest frequency is 1 / theta.
  bool adjacent = false;
  bool operator==(const RopeSpec&) const = default;
};

// Norms of q and k before the rotation: of each head, or of all heads together.
enum class QkNorm : std::uint8_t { None, PerHead, Whole };

struct AttentionSpec {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  LinearSpec qkv, out;
  bool qkv_per_head = false;  // outputs of the packed projection are grouped per head: q, k, v
  QkNorm qk_norm = QkNorm::None;
  NormSpec q_norm = {}, k_norm = {};
  std::optional<RopeSpec> rope = {};
  bool alibi = false;
  std::int64_t window = 0;  // keys that a query sees, itself included; 0: all before it
};

// RetNet's mixer: projections to q, k, v and a gate; retention; a norm per head times the gate.
struct RetentionSpec {
  std::int64_t heads = 0, k_dim = 0, v_dim = 0;  // of a head
  LinearSpec projection, out;                    // projection: q, k, v, gate
  RopeSpec rope;
  double norm_eps = 1e-6;
};

struct MlpSpec {
  std::int64_t size = 0;
  ActivationKind activation = ActivationKind::Swiglu;
  LinearSpec up, down;  // up: gate and up side by side for SwiGLU
};

// x += after(sublayer(before(x))), each norm where it is given.
struct BranchSpec {
  std::optional<NormSpec> before = {}, after = {};
  std::variant<AttentionSpec, RetentionSpec, MlpSpec> sublayer;
};

// One block: its branches, one after the other.
struct LayerSpec {
  std::vector<BranchSpec> branches;
};

struct EmbeddingSpec {
  std::string table;
  std::int64_t vocab_size = 0;
  std::string positions = {};  // learned ones
  std::int64_t max_positions = 0;
  std::optional<NormSpec> norm = {};
  Init init = {};
};

struct HeadSpec {
  NormSpec norm;
  std::string table;  // the embedding's where they are tied
  std::int64_t vocab_size = 0;
  Init init = {};
};

struct ModelSpec {
  std::int64_t hidden_size = 0;
  bool tied = false;
  EmbeddingSpec embedding;
  std::vector<LayerSpec> layers;
  HeadSpec head;
};

ModelSpec model_spec(const ModelConfig& config);

// The sublayers of one kind, in the order of the layers.
template <class Sublayer>
std::vector<const Sublayer*> sublayers_of(const ModelSpec& model) {
  std::vector<const Sublayer*> found;
  for (const LayerSpec& layer : model.layers)
    for (const BranchSpec& branch : layer.branches)
      if (const auto* sublayer = std::get_if<Sublayer>(&branch.sublayer)) found.push_back(sublayer);
  return found;
}

}  // namespace kintsugi
