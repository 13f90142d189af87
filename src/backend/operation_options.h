#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "tensor/tensor.h"

namespace kintsugi {

struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;      // c += instead of c =
  Tensor bias = {};             // (n), added to every row
  Tensor residual = {};         // (m, n), added; may be c itself
  double scale = 1.0;           // of op(a) op(b)
  double residual_scale = 1.0;  // of the residual
  // GELU forward or backward, fused into the matmul where that is faster:
  Tensor gelu = {};        // (m, n), second output: gelu(c)
  Tensor gelu_input = {};  // (m, n): the result is multiplied by gelu'(gelu_input)
  // SwiGLU, likewise: (m, n / 2), second output: silu(left half of c) * right half of c
  Tensor swiglu = {};
  // b has not been written since the last synchronize(), as the weights of generation: it may be
  // read before the operations that were queued earlier are done.
  bool constant_b = false;
  // A row of c depends on its row of a, not on its index: deterministic generation, which computes
  // the same number of rows in every step. A GPU's kernels compute all rows of a matmul alike.
  bool rows_alike = false;
  // matmul_fp8: sums are kept in about 14 bits, as the tensor cores of Hopper do it fastest.
  bool fast_accumulation = false;
};

// The rows that a rank's experts compute: row i belongs to choice rows[i] = token * choices + slot,
// and expert e has the rows [offsets[e], offsets[e + 1]). Rows after the last offset are unused.
struct ExpertRows {
  Tensor rows = {};          // (rows), int32
  Tensor offsets = {};       // (experts + 1), int32
  std::int64_t choices = 1;  // of a token
  double used = 1.0;         // the part of the rows that is used if experts are chosen alike
};

struct QuantizeOptions {
  bool power_of_two = true;   // scales are rounded up to powers of two
  bool one_scale = false;     // for the whole matrix, instead of one per row (or column)
  bool through_bf16 = false;  // x is rounded to bf16 first, as a copy of it in bf16 would be
  Maxima maxima = {};         // of x, if they are known; not used with one_scale
  // (4), fp32: the largest magnitude of x so far; and counts, added to those of earlier calls:
  // elements that are not 0 but became 0, elements that have the largest magnitude of fp8, and all
  // elements. Empty: not computed.
  Tensor statistics = {};
  // x has a row for each of these, of which those that are used are quantized, to `rows` alone.
  ExpertRows used = {};
};

// The positions of an attention's tokens in their sequence: consecutive from `first`, or in two
// consecutive chunks, as in context parallelism.
struct TokenPositions {
  std::int64_t first = 0;
  std::int64_t chunk = std::numeric_limits<std::int64_t>::max();  // tokens in the first chunk
  std::int64_t second = 0;  // position of the second chunk's first token, behind the first chunk

  constexpr std::int64_t of(std::int64_t token) const {
    return token < chunk ? first + token : second + (token - chunk);
  }
  // Returns how many of the first `tokens` tokens are before a position.
  constexpr std::int64_t before(std::int64_t position, std::int64_t tokens) const {
    const std::int64_t early = std::min(tokens, chunk);
    return std::clamp<std::int64_t>(position - first, 0, early) +
           std::clamp<std::int64_t>(position - second, 0, tokens - early);
  }
  bool operator==(const TokenPositions&) const = default;
};

// Causal: a query sees the keys up to its own position.
struct AttentionOptions {
  double scale = 1.0;
  Tensor alibi_slopes = {};    // (heads), fp32: adds slope * key position to the scores
  Tensor document_start = {};  // (batch, queries), int32: the first key that query i sees
  std::int64_t window = 0;     // how many positions a query sees, its own included; 0: all
  TokenPositions key_positions = {};
  std::optional<TokenPositions> query_positions = {};  // none: the last query is at the last key
};
// Returns whether any query sees a key, ignoring document_start.
bool sees_anything(const AttentionOptions& options, std::int64_t queries, std::int64_t keys);

// Causal attention to keys and values in pages, for queries of many sequences. A page has the keys
// or values of consecutive tokens of one sequence.
struct PagedAttentionOptions {
  double scale = 1.0;
  Tensor alibi_slopes = {};  // as in AttentionOptions
  std::int64_t window = 0;
  Tensor pages = {};  // (sequences, pages), int32: the pages of each sequence in order
  // (tiles, 4), int32: the queries, in groups of consecutive tokens of one sequence: {first row of
  // q, tokens, row of `pages`, position of the first token}. 0 tokens: an unused tile.
  Tensor tiles = {};
  std::int64_t tile_tokens = 1;  // the most tokens of a tile
  std::int64_t max_keys = 0;     // no query sees more keys
};

// The pairs of elements of a head that RoPE rotates: i and i + dim / 2, or 2i and 2i + 1.
enum class RopePairs : std::uint8_t { Halves, Adjacent };

struct RetentionOptions {
  double scale = 1.0;
  Tensor decays = {};               // (heads), fp32, each below 1
  std::int64_t first_position = 0;  // of the first token inside its sequence
  std::int64_t chunk = 0;           // tokens per chunk; 0: kRetentionChunk
};

// The default tokens per chunk: matmuls of this size fill a GPU's tensor cores, and the matmuls
// within a chunk cost no more than those with the states.
inline constexpr std::int64_t kRetentionChunk = 256;

// The sizes of a retention operation.
struct RetentionSizes {
  std::int64_t batch = 0, length = 0, heads = 0, k_dim = 0, v_dim = 0;
  std::int64_t chunk = 0;  // 0: kRetentionChunk

  std::int64_t chunk_tokens() const;  // at most the length
  std::int64_t chunks() const;        // per sequence; the last may be shorter
};

// The workspace that the retention operations need; `backward` includes the backward, which needs
// the most.
std::size_t retention_workspace_bytes(DType dtype, const RetentionSizes& sizes, bool backward);

// How a router turns the logits of a token into scores, one per expert, and chooses experts.
enum class RouteScores : std::uint8_t { Softmax, Sigmoid };
struct RouteOptions {
  RouteScores scores = RouteScores::Softmax;
  // The experts are in so many groups of equal size. Only experts of the best top_groups groups are
  // chosen; the score of a group is the sum of its best two.
  std::int64_t groups = 1, top_groups = 1;
  bool normalize = true;  // the weights of a token are divided by their sum
  double scale = 1.0;     // of the weights
  // For timing: token t chooses the experts t k to t k + k - 1, modulo their number, whatever their
  // scores.
  bool even = false;
};

// Losses of a router that depend on its logits alone, as gradients. The probabilities of a token
// are its scores divided by their sum.
struct RouteLosses {
  // (sequences, experts), in accumulator precision: the gradient of each probability of the tokens
  // of a sequence; all sequences have the same number of tokens.
  Tensor balance = {};
  double z_loss = 0;  // of log^2 Z, where Z is the sum of exp(logits)
};

// How many choices of an expert a sequence may have.
struct ChoiceLimit {
  std::int64_t length = 0;  // tokens of a sequence
  std::int64_t experts = 0, capacity = 0;
};

// Rank r has the experts from first + r * stride on, `own` of them.
struct ExpertOwners {
  std::int64_t first = 0, own = 1, stride = 1;
};

struct GroupedOptions {
  bool transpose_b = false;
  // a or b has a row per token, of which row i reads that of rows[i] / choices.
  bool tokens_a = false, tokens_b = false;
  bool accumulate = false;
  double scale = 1.0;              // of the products; grouped_matmul only
  bool fast_accumulation = false;  // grouped_matmul_fp8: as in MatmulOptions
};

// Selects the random numbers of a dropout: a pure function of the seed, the layer and the global
// index of the element.
struct DropoutOptions {
  double probability = 0.0;
  std::uint64_t key = 0;       // derive_key(seed, site, step)
  std::int64_t first_row = 0;  // global index of row 0 of this tensor within the step
  Tensor rows = {};            // (rows), int32: row i is global row first_row + rows[i]; none: + i
  // The tensor has the columns from first_column on of rows of this width; 0: all of them.
  std::int64_t first_column = 0, width = 0;
};

enum class Distribution : std::uint8_t {
  Normal,  // mean 0 and standard deviation `scale`: Box-Muller in double
  Uniform  // in [-scale, scale)
};

// Selects the random numbers of initial weights. Each is a pure function of the key and the
// element's index in the whole parameter, so that every layout initializes the same model.
struct DrawOptions {
  Distribution distribution = Distribution::Normal;
  double scale = 1.0;
  std::uint64_t key = 0;        // derive_key(seed, hash of the parameter's name)
  std::int64_t first = 0;       // index of element (0, 0)
  std::int64_t row_stride = 0;  // index of element (1, 0) minus that of (0, 0)
};

// What cross_entropy computes besides the losses. Z of a row is the sum of exp(logits).
struct CrossEntropyOptions {
  // If not 0, the logits are overwritten with gradient_scale * d(loss + z_loss * log^2 Z) /
  // dlogits.
  double gradient_scale = 0;
  double z_loss = 0;
  // (rows), in accumulator precision: losses, log^2 Z and gradients are multiplied by
  // it, smallest_losses are not.
  Tensor weights = {};
  Tensor squared_log_z = {};  // (rows), second output: log^2 Z; 0 where target < 0
  // (rows), third output: the loss of the most likely token, bit for bit that of the target if it
  // has the largest logit; 0 where target < 0
  Tensor smallest_losses = {};
};

// The loss of preference pairs (DPO).
struct PreferenceOptions {
  double beta = 0.1;
  double label_smoothing = 0;  // probability that a preference is the wrong way round
};

// How the scale of gradients is computed from their norm.
struct ClipOptions {
  double clip = 0;       // largest norm after unscaling; 0: no clipping
  double unscale = 1.0;  // the gradients are multiplied by it
  // A step with a larger norm (after unscaling) or loss is an outlier: its scale is NaN.
  double norm_limit = std::numeric_limits<double>::infinity();
  double loss_limit = std::numeric_limits<double>::infinity();
  Tensor loss = {};  // (1), in accumulator precision; only with a loss_limit
};

struct AdamWOptions {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;  // decoupled: w -= lr * weight_decay * w
  std::int64_t step = 1;    // counts from 1, for bias correction
  // bf16 moments are rounded stochastically, so that rounding errors average out. The random bits
  // of element i are a pure function of this key and first_element + i. 0: round to nearest.
  std::uint64_t rounding_key = 0;
  std::int64_t first_element = 0;
};

struct MomentumOptions {
  double momentum = 0.95;
  bool nesterov = true;
  std::uint64_t rounding_key = 0;  // of a bf16 moment, as in AdamWOptions
  std::int64_t first_element = 0;
};

}  // namespace kintsugi
