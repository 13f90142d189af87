#pragma once

#include <optional>

#include "model/layers/norm.h"
#include "model/layers/sublayer.h"

namespace kintsugi {

// Projections to q, k, v, norms of q and k, RoPE, attention, output projection, on this rank's
// heads. With context parallelism, attention is RingAttention.
class Attention final : public Sublayer {
 public:
  explicit Attention(const AttentionSpec& spec);

  void declare(Declaration& d) override;
  void forward(const LayerRun& run, Tensor x) const override;
  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    out_.forward(run, y, run[attended_], residual);
  }
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override;
  void backward_weight(const LayerRun& run, Tensor x) const override;
  void backward_output_weight(const LayerRun& run, Tensor dy, Tensor own_dy) const override {
    out_.backward_weight(run, dy, run[attended_], own_dy);
  }
  Linear* reader_of_x() override { return &projection_; }
  Linear* reader_of_dy() override { return &out_; }

 private:
  struct Heads {
    Tensor q, k, v;  // (tokens, heads, head_dim) views
  };
  struct Normed {
    Tensor x, y;        // input and output; in the backward, y is the gradient of both
    Tensor rstd, sums;  // sums: for rows that are sharded over the tensor ranks, else empty
  };
  void declare_norms(Declaration& d);
  Normed normed(const LayerRun& run, const Heads& raw, const Heads& result, bool of_keys) const;
  Heads split(Tensor qkv) const;
  // The q and k that attention reads: in qkv_, or their normalized copy in normed_.
  Heads attention_inputs(const LayerRun& run) const;
  void norm_forward(const LayerRun& run) const;
  void norm_backward(const LayerRun& run, const Heads& gradient) const;
  void rotate(const LayerRun& run, const Heads& heads, bool inverse) const;
  void rotate_gradient(const LayerRun& run) const;
  void forward_cached(const LayerRun& run, const Heads& heads) const;
  double scale() const;
  Tensor slopes(const LayerRun& run) const {
    return spec_.alibi ? run.context.tables.slopes : Tensor();
  }
  AttentionOptions options(const LayerRun& run) const;
  Tensor log_sum_exp(const LayerRun& run) const;  // (sequences, heads, length)

  AttentionSpec spec_;
  std::int64_t heads_ = 0, kv_heads_ = 0;  // of this rank
  Linear projection_, out_;
  std::optional<Norm> q_norm_, k_norm_;
  Saved qkv_;     // (tokens, (heads + 2 kv_heads) head_dim); q, k rotated unless they have a norm
  Saved normed_;  // (tokens, (heads + kv_heads) head_dim), normalized and rotated
  Saved q_rstd_, k_rstd_;
  Saved attended_;     // (tokens, heads head_dim)
  Saved log_sum_exp_;  // (tokens, heads)
  Workspace dqkv_, dattended_, sums_;
};

}  // namespace kintsugi
