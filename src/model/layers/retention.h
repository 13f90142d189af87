#pragma once

#include "model/layers/sublayer.h"

namespace kintsugi {

// RetNet's token mixer: projections to q, k, v and a gate, RoPE, chunkwise retention, a norm per
// head times the gate, output projection, on this rank's heads. With context parallelism, ranks
// send only the state between chunks. Generation keeps one state per head.
class Retention final : public Sublayer {
 public:
  explicit Retention(const RetentionSpec& spec)
      : spec_(spec), projection_(spec.projection), out_(spec.out) {}

  void declare(Declaration& d) override;
  void forward(const LayerRun& run, Tensor x) const override;
  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    out_.forward(run, y, run[gated_], residual);
  }
  void recompute(const LayerRun& run) const override;
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override;
  void backward_weight(const LayerRun& run, Tensor x) const override;
  void backward_output_weight(const LayerRun& run, Tensor dy, Tensor own_dy) const override {
    out_.backward_weight(run, dy, run[gated_], own_dy);
  }
  Linear* reader_of_x() override { return &projection_; }
  Linear* reader_of_dy() override { return &out_; }

 private:
  struct Parts {
    Tensor q, k, v, gate;  // (tokens, heads, dim) views
  };
  // The inputs of retention for one of this rank's two chunks (context parallelism).
  struct ChunkInputs {
    Tensor q, k, v;  // (sequences, length, heads, dim)
    RetentionOptions options;
  };
  void declare_states(Declaration& d);
  Parts split(Tensor projected) const;
  void rotate(const LayerRun& run, const Parts& parts, bool inverse) const;
  RetentionOptions options(const LayerRun& run, std::int64_t first_position) const;
  Tensor state(const LayerRun& run, const Tensor& memory) const;
  // One of the two chunks of a tensor of all local tokens; chunk 0 is the earlier one.
  Tensor chunk_of(const LayerRun& run, const Tensor& x, int chunk) const;
  ChunkInputs chunk_inputs(const LayerRun& run, const Parts& parts, int chunk) const;
  void add_decayed(const LayerRun& run, Tensor sum, Tensor other) const;
  void forward_cached(const LayerRun& run, const Parts& parts) const;
  void forward_chunks(const LayerRun& run, const Parts& parts) const;
  void backward_chunks(const LayerRun& run, const Parts& parts, const Parts& gradients,
                       Tensor dretained) const;

  RetentionSpec spec_;
  std::int64_t heads_ = 0;  // of this rank
  Linear projection_, out_;
  Saved projected_;  // (tokens, heads (2 k_dim + 2 v_dim)): q and k rotated
  Saved retained_;   // (tokens, heads v_dim)
  Saved rstd_;       // (tokens, heads)
  Saved gated_;      // like retained_
  Saved before_[2];  // (sequences, heads, k_dim, v_dim): state before each local chunk
  Workspace dprojected_, dretained_, scratch_;
  Workspace states_[5];  // like before_
};

}  // namespace kintsugi
