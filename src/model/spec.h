#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.h"

namespace kintsugi {

// Describes the layers of a model and the public (Hugging Face) names of its parameters. Each
// family writes a ModelSpec; the layers are built from it. All sizes are those of the unsharded
// model.

enum class NormKind : std::uint8_t { Rms, Layer };
enum class ActivationKind : std::uint8_t { Gelu, Swiglu };
enum class InitKind : std::uint8_t { Normal, Uniform, Ones, Zeros };

struct Init {
  InitKind kind = InitKind::Normal;
  double scale = 0.0;  // Normal: standard deviation. Uniform: values are in [-scale, scale).
  bool operator==(const Init&) const = default;
};

struct NormSpec {
  NormKind kind = NormKind::Rms;
  double eps = 1e-5;
  std::string name;  // prefix of the parameter names: NAME.weight and, for LayerNorm, NAME.bias
  bool operator==(const NormSpec&) const = default;
};

// Low-rank adapters of the matrices of one LinearSpec (LoraConfig).
struct AdapterSpec {
  std::vector<std::string> names =
      {};  // one per matrix, without .lora_A.weight; empty: it has none
  std::int64_t r = 0;
  double scale = 1, dropout = 0;
  bool any() const { return !names.empty(); }
  bool operator==(const AdapterSpec&) const = default;
};

// fp8 matmuls of one LinearSpec (Fp8Config).
struct Fp8Spec {
  bool one_scale = false;                           // per matrix instead of per row; not of experts
  bool power_of_two = true;                         // scales
  bool wgrad = true;                                // the gradient of the weights, too
  bool fast_forward = true, fast_backward = false;  // accumulation
  int site = 0;  // number of the matmul in the model, for statistics
  bool operator==(const Fp8Spec&) const = default;
};

// y = x W^T + b. Several matrices with the same input are computed as one matmul.
struct LinearSpec {
  std::vector<std::string> weights = {};
  std::vector<std::string> biases = {};  // empty, or one per matrix
  std::vector<std::int64_t> outputs = {};
  std::int64_t inputs = 0;
  bool in_out = false;    // stored [in, out] (GPT-2's Conv1D) instead of [out, in]
  int parts = 1;          // the outputs consist of this many parts, each sharded separately
  int matrices = 1;       // the outputs belong to so many matrices (q, k, v), one after the other
  std::int64_t turn = 0;  // or in turns of so many outputs
  std::vector<Init> init = {};
  AdapterSpec adapters = {};
  std::optional<Fp8Spec> fp8 = {};
  bool operator==(const LinearSpec&) const = default;
};

// Rotary position embedding.
struct RopeSpec {
  std::int64_t dim = 0;
  double theta = 10000.0;
  std::optional<RopeScaling> scaling = {};
  // RetNet's variant: it rotates adjacent pairs instead of halves, and the lowest frequency is
  // 1 / theta.
  bool adjacent = false;
  bool operator==(const RopeSpec&) const = default;
};

// Norms of q and k before the rotation: one per head, or one over all heads together.
enum class QkNorm : std::uint8_t { None, PerHead, Whole };

struct AttentionSpec {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  LinearSpec qkv, out;
  bool qkv_per_head = false;  // the packed projection is ordered by head: q0 k0 v0 q1 k1 v1 …
  QkNorm qk_norm = QkNorm::None;
  NormSpec q_norm = {}, k_norm = {};
  std::optional<RopeSpec> rope = {};
  bool alibi = false;
  std::int64_t window = 0;  // keys that a query attends to, including its own; 0: all earlier ones
  bool operator==(const AttentionSpec&) const = default;
};

// Multi-head latent attention (DeepSeek): keys and values of all heads are computed from a short
// latent vector per token, and queries may be. Of a query or key, the first plain_dim elements are
// not rotated, and the others are rotated in adjacent pairs; all heads share those of a key.
struct LatentAttentionSpec {
  std::int64_t heads = 0;
  std::int64_t query_rank = 0, rank = 0;  // widths of the latents; query_rank 0: queries have none
  std::int64_t plain_dim = 0, rotary_dim = 0, value_dim = 0;  // of a head
  // down: the latents of queries, or the queries themselves; and the latents of keys and values
  // with the rotated part of the keys behind them. up: of each head, the plain part of the key,
  // then the value.
  LinearSpec down, query_up, up, out;
  NormSpec query_norm, norm;  // of the latents
  RopeSpec rope;              // of rotary_dim
  double scale = 1;           // of the scores
  std::int64_t key_dim() const { return plain_dim + rotary_dim; }
  bool operator==(const LatentAttentionSpec&) const = default;
};

// RetNet's token mixer: projections to q, k, v and a gate; retention; a norm per head times the
// gate.
struct RetentionSpec {
  std::int64_t heads = 0, k_dim = 0, v_dim = 0;  // dims are per head
  LinearSpec projection, out;                    // projection outputs q, k, v, gate
  RopeSpec rope;
  double norm_eps = 1e-6;
  bool operator==(const RetentionSpec&) const = default;
};

struct MlpSpec {
  std::int64_t size = 0;
  ActivationKind activation = ActivationKind::Swiglu;
  LinearSpec up, down;  // SwiGLU: `up` outputs gate and up side by side
  bool operator==(const MlpSpec&) const = default;
};

// A mixture of experts: a router chooses some of `count` MLPs with SwiGLU for each token, and their
// results are added with the router's weights.
struct ExpertsSpec {
  std::int64_t count = 0, chosen = 0;
  std::int64_t hidden = 0, size = 0;  // inputs and width of an expert
  std::string router = {};
  // Added to the scores when experts are chosen, but not to their weights; empty: there is none. No
  // gradient trains it: it follows the loads of the experts (BalanceConfig::bias_speed).
  std::string bias = {};
  LinearSpec up = {};    // gate, then up of each expert, with the same outputs
  LinearSpec down = {};  // one matrix per expert
  Init router_init = {};
  // As in RouteOptions:
  bool sigmoid = false;
  std::int64_t groups = 1, top_groups = 1;
  bool normalize = true, even = false;
  double scale = 1;
  // Losses that keep the experts in balance (BalanceConfig), and the row of expert_counts:
  double balance_loss = 0, z_loss = 0;
  bool counts_last_step = false;
  double capacity = 0;  // BalanceConfig
  int layer = 0;
  std::optional<MlpSpec> shared = {};  // an MLP for all tokens beside the experts
  bool operator==(const ExpertsSpec&) const = default;
};

// A matmul of a sublayer, for fp8 and adapters.
struct LinearUse {
  LinearSpec* linear;
  std::string_view site;  // its name in Fp8Config::filter; empty: it is never in fp8
  // The matrices that have an adapter if no targets are given.
  std::vector<std::size_t> adapted = {};
  // It has the matrices of so many experts, one expert after the other: all experts have adapters
  // of the same ones, without dropout. 0: it has no experts.
  std::int64_t experts = 0;
};
std::vector<LinearUse> linears_of(AttentionSpec& spec);
std::vector<LinearUse> linears_of(LatentAttentionSpec& spec);
std::vector<LinearUse> linears_of(RetentionSpec& spec);
std::vector<LinearUse> linears_of(MlpSpec& spec);
std::vector<LinearUse> linears_of(ExpertsSpec& spec);

// Removes what differs between layers that compute the same: names of parameters and numbers of
// sites.
void clear_names_of(NormSpec& spec);
void clear_names_of(LinearSpec& spec);
void clear_names_of(AttentionSpec& spec);
void clear_names_of(LatentAttentionSpec& spec);
void clear_names_of(RetentionSpec& spec);
void clear_names_of(MlpSpec& spec);
void clear_names_of(ExpertsSpec& spec);

class Sublayer;
std::shared_ptr<Sublayer> make_sublayer(const AttentionSpec& spec);
std::shared_ptr<Sublayer> make_sublayer(const LatentAttentionSpec& spec);
std::shared_ptr<Sublayer> make_sublayer(const RetentionSpec& spec);
std::shared_ptr<Sublayer> make_sublayer(const MlpSpec& spec);
std::shared_ptr<Sublayer> make_sublayer(const ExpertsSpec& spec);

// The spec of a sublayer of any kind. A kind is a struct with == and the three functions above, or
// it does not compile; no other code knows the kinds.
class SublayerSpec {
 public:
  template <class Kind>
  SublayerSpec(Kind kind)  // implicit: families assign the spec of a kind
      : kind_(std::move(kind)), calls_(&kCalls<Kind>) {}

  std::vector<LinearUse> linears() { return calls_->linears(kind_); }
  void clear_names() { calls_->clear_names(kind_); }
  std::shared_ptr<Sublayer> make() const { return calls_->make(kind_); }
  bool operator==(const SublayerSpec& other) const {
    return calls_ == other.calls_ && calls_->equal(kind_, other.kind_);
  }

 private:
  struct Calls {
    std::vector<LinearUse> (*linears)(std::any&);
    void (*clear_names)(std::any&);
    std::shared_ptr<Sublayer> (*make)(const std::any&);
    bool (*equal)(const std::any&, const std::any&);
  };
  template <class Kind>
  static const Kind& as(const std::any& any) {
    return *std::any_cast<Kind>(&any);
  }
  template <class Kind>
  static Kind& as(std::any& any) {
    return *std::any_cast<Kind>(&any);
  }
  template <class Kind>
  static constexpr Calls kCalls = {
      [](std::any& any) { return linears_of(as<Kind>(any)); },
      [](std::any& any) { clear_names_of(as<Kind>(any)); },
      [](const std::any& any) { return make_sublayer(as<Kind>(any)); },
      [](const std::any& a, const std::any& b) { return as<Kind>(a) == as<Kind>(b); }};

  std::any kind_;
  const Calls* calls_;
};

// x += after(sublayer(before(x))); both norms are optional.
struct BranchSpec {
  std::optional<NormSpec> before = {}, after = {};
  SublayerSpec sublayer;
  bool operator==(const BranchSpec&) const = default;
};

// One transformer block: its branches run in order.
struct LayerSpec {
  std::vector<BranchSpec> branches;

  std::vector<LinearUse> linears();  // of all branches
  void clear_names();                // clear_names_of() of all its parts
  bool operator==(const LayerSpec&) const = default;
};

struct EmbeddingSpec {
  std::string table;
  std::int64_t vocab_size = 0;
  std::string positions = {};  // table of learned positions; empty: none
  std::int64_t max_positions = 0;
  std::optional<NormSpec> norm = {};
  Init init = {};
};

struct HeadSpec {
  NormSpec norm;
  std::string table;  // the embedding's table if they are tied
  std::int64_t vocab_size = 0;
  Init init = {};
  // The columns are labels instead of tokens: so few that no rank shards them.
  bool classifies = false;
};
inline constexpr const char* kScoreTable = "score.weight";  // of classifiers in all families

struct ModelSpec {
  std::int64_t hidden_size = 0;
  bool tied = false;
  EmbeddingSpec embedding;
  std::vector<LayerSpec> layers;
  HeadSpec head;
};

ModelSpec model_spec(const ModelConfig& config);

}  // namespace kintsugi
