#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace kintsugi {

// Memory and maths on one device, at the grain of a fused kernel. Layers are written against this
// and nothing else.
//
// Conventions for every operation:
// - Activations are (tokens, width), row-major; tokens = sequences x sequence length. Their dtype
//   is the run's precision.
// - Statistics, losses and gradients of parameters are in accumulator precision (fp32; fp64 in fp64
//   runs).
// - The operand that is written comes first. Gradients of parameters are added to (matmul: where it
//   is told to); gradients of activations are overwritten unless the operation says otherwise. An
//   empty Tensor means "not there".
// - Calls are queued in order on the device; only download() and synchronize() wait.

struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // c += instead of c =
  Tensor bias = {};         // (n), added to every row
  Tensor residual = {};     // (m, n), added; may be c itself
  // A GELU on either side, fused where the device gains by it:
  Tensor gelu = {};  // (m, n), written beside c: gelu(c)
  Tensor gelu_input =
      {};  // (m, n): the product is a gradient, c takes it through gelu at this place
};

// Where the tokens of an attention are in their sequence: one after the other from `first` on, or
// in two chunks, as context parallelism has them.
struct TokenPositions {
  std::int64_t first = 0;
  std::int64_t chunk = std::numeric_limits<std::int64_t>::max();  // tokens in the first chunk
  std::int64_t second = 0;  // where the second chunk starts, after the first one

  constexpr std::int64_t of(std::int64_t token) const {
    return token < chunk ? first + token : second + (token - chunk);
  }
  // How many of `tokens` are before a position.
  constexpr std::int64_t before(std::int64_t position, std::int64_t tokens) const {
    const std::int64_t early = std::min(tokens, chunk);
    return std::clamp<std::int64_t>(position - first, 0, early) +
           std::clamp<std::int64_t>(position - second, 0, tokens - early);
  }
  bool operator==(const TokenPositions&) const = default;
};

// A query sees the keys up to its own position.
struct AttentionOptions {
  double scale = 1.0;
  Tensor alibi_slopes = {};    // (heads), fp32: adds slope * key position to the scores
  Tensor document_start = {};  // (batch, queries), int32: the first key that query i sees
  std::int64_t window = 0;     // how many positions a query sees, its own included; 0: all
  TokenPositions key_positions = {};
  std::optional<TokenPositions> query_positions = {};  // none: the last query is at the last key
};
// Whether any query sees a key, documents aside.
bool sees_anything(const AttentionOptions& options, std::int64_t queries, std::int64_t keys);

// Which elements of a head turn against each other: i and i + dim / 2, or 2i and 2i + 1.
enum class RopePairs : std::uint8_t { Halves, Adjacent };

struct RetentionOptions {
  double scale = 1.0;
  Tensor decays = {};               // (heads), fp32, each below 1
  std::int64_t first_position = 0;  // of the first token inside its sequence
  std::int64_t chunk = 0;           // tokens per chunk; 0: kRetentionChunk
};

// Tokens per chunk where the options name none: matmuls of this size fill a GPU's matrix units,
// and cost no more than those with the states.
inline constexpr std::int64_t kRetentionChunk = 256;

// What a call of the retention operations works on.
struct RetentionSizes {
  std::int64_t batch = 0, length = 0, heads = 0, k_dim = 0, v_dim = 0;
  std::int64_t chunk = 0;  // 0: kRetentionChunk

  std::int64_t chunk_tokens() const;  // at most the length
  std::int64_t chunks() const;        // of a sequence; the last may be shorter
};

// The workspace of any of the operations; the backward needs the most.
std::size_t retention_workspace_bytes(DType dtype, const RetentionSizes& sizes, bool backward);

// Which random numbers a dropout uses: a pure function of the seed, the place in the network and
// the global element.
struct DropoutOptions {
  double probability = 0.0;
  std::uint64_t key = 0;       // derive_key(seed, site, step)
  std::int64_t first_row = 0;  // global index of row 0 of this tensor within the step
  Tensor rows = {};            // (rows), int32: row i is global row first_row + rows[i]; none: + i
};

struct AdamWOptions {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;  // decoupled: w -= lr * weight_decay * w
  std::int64_t step = 1;    // counts from 1, for bias correction
  // bf16 moments rounded up or down by chance, so that their errors average out: random bits for
  // element i are a pure function of this key and first_element + i. 0: to the nearest.
  std::uint64_t rounding_key = 0;
  std::int64_t first_element = 0;
};

class Backend : public Allocator {
 public:
  virtual std::string description() const = 0;  // "cpu: 2 threads, OpenBLAS neoversev1"
  // The best matmul rate this device reaches in a precision, and where the figure comes from: the
  // MFU's denominator.
  struct Peak {
    double flops_per_s = 0;
    std::string source;
  };
  virtual Peak peak_flops(DType dtype) = 0;
  virtual std::size_t available_bytes() const = 0;
  // Memory the backend holds for itself beside the arena (conversion tiles, library work space).
  virtual std::size_t own_bytes() const = 0;

  // How many logits the classifier should hold at a time: few enough to stay in a cache, or enough
  // to fill a large chip.
  virtual std::int64_t classifier_elements() const { return std::int64_t{1} << 24; }

  // ---- memory. upload, download and fill take tensors in host_memory(), too.
  virtual void upload(Tensor destination, const void* source) = 0;  // contiguous, from host
  virtual void download(void* destination, Tensor source) = 0;      // contiguous, to host; waits
  virtual void fill(Tensor x, double value) = 0;
  virtual void synchronize() = 0;
  // Runs `calls`, which must queue the same operations on the same tensors whenever `key` is the
  // same. A device that can records them the second time and replays the record from then on.
  virtual void replay(std::uint64_t key, const std::function<void()>& calls) {
    (void)key;
    calls();
  }
  // Whether operations are being recorded just now (core/trace.h), and a common name for those
  // queued between begin_phase and end_phase. See backend/phase.h.
  virtual bool traces() const { return false; }
  virtual void begin_phase(std::string name) { (void)name; }
  virtual void end_phase() noexcept {}

  // ---- host memory beside the device
  virtual std::size_t available_host_bytes() const = 0;
  // Operations on tensors in host_memory(), done when a call returns; nullptr where this backend
  // was made without. In the CPU world, the backend itself.
  virtual Backend* host() { return this; }
  // Copies between host_memory() and the device, contiguous and of the same size, each direction
  // one after the other beside the operations. A copy starts when the operations queued so far are
  // done, and a call returns at once. Every one is waited for once, in any order: either wait()
  // lets operations and copies queued afterwards see its result, or finish() returns when it is
  // done, for the host itself. In between, nobody touches its tensors.
  struct Transfer {
    std::int64_t ticket = 0;  // 0: nothing to wait for
  };
  virtual Transfer to_device(Tensor device, Tensor host) = 0;
  virtual Transfer to_host(Tensor host, Tensor device) = 0;
  virtual void wait(Transfer transfer) = 0;
  virtual void finish(Transfer transfer) = 0;
  // What the copies that were waited for amounted to so far, without those in a replay.
  struct TransferTotals {
    std::int64_t bytes = 0;
    double busy_s = 0;  // between a copy's start and its end
  };
  struct LinkTotals {
    TransferTotals to_device, to_host;
  };
  virtual LinkTotals link_totals() { return {}; }

  // ---- the maths: one virtual per entry of the list
#define KINTSUGI_OPERATION(name, parameters, ...) virtual void name parameters = 0;
#include "backend/operations.def"
};

}  // namespace kintsugi
