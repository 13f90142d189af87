#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "model/layers/attend.h"
#include "model/layers/norm.h"
#include "model/layers/sublayer.h"

namespace kintsugi {
namespace {

// Projections to q, k, v, norms of q and k, RoPE, attention, output projection, on this rank's
// heads. With context parallelism, attention is ContextAttention.
class Attention final : public Sublayer {
 public:
  explicit Attention(const AttentionSpec& spec)
      : spec_(spec), projection_(spec.qkv), out_(spec.out) {
    if (spec.qk_norm == QkNorm::None) return;
    q_norm_.emplace(spec.q_norm);
    k_norm_.emplace(spec.k_norm);
  }

  void declare(Declaration& d) override {
    const int tp = d.ranks().tensor, copies = kv_copies(spec_.kv_heads, tp);
    KINTSUGI_CHECK(spec_.heads % tp == 0 && spec_.kv_heads * copies % tp == 0,
                   "{} heads and {} key-value heads on {} ranks", spec_.heads, spec_.kv_heads, tp);
    heads_ = spec_.heads / tp;
    kv_heads_ = spec_.kv_heads * copies / tp;
    const bool apart = spec_.qkv.weights.size() > 1;
    projection_.declare_outputs(d, ParameterGroup::Attention,
                                apart ? std::vector{1, copies, copies} : std::vector{1});
    const std::int64_t qkv = (heads_ + 2 * kv_heads_) * spec_.head_dim,
                       width = heads_ * spec_.head_dim;
    if (spec_.rope && !rotates_part() && !spec_.qkv_per_head && !q_norm_)
      projection_.fp8().take_gradient_maxima(d);
    qkv_ = d.saved({.label = "q, k, v", .width = qkv});
    if (q_norm_) declare_norms(d);
    out_.declare_inputs(d, ParameterGroup::Attention);
    attended_ = d.saved({.label = "attention", .width = width});
    log_sum_exp_ = d.saved({.label = "attention statistics", .width = heads_, .wide = true});
    dqkv_ = d.workspace(
        {.label = "gradient of q, k, v", .width = qkv, .training = true, .read_by_weights = true});
    dattended_ = d.workspace({.label = "gradient of attention", .width = width, .training = true});
    for (const char* label : {"keys", "values"})
      d.cache({.label = label,
               .per_token = kv_heads_ * spec_.head_dim,
               .queries = spec_.heads / spec_.kv_heads});
    d.positions({.rope = spec_.rope, .slopes = spec_.alibi ? heads_ : 0});
    d.context_heads({heads_, kv_heads_, spec_.head_dim, spec_.head_dim});
    // Two matmuls per query: scores and weighted sum of values. Causal attention computes half of
    // the square; with a window, only the first `window` rows are short.
    const double length = static_cast<double>(d.length()),
                 window = spec_.window > 0 ? std::min(static_cast<double>(spec_.window), length)
                                           : length,
                 per_key = 4.0 * static_cast<double>(spec_.heads * spec_.head_dim);
    d.mixing(length > 0 ? per_key * window * (1 - window / (2 * length)) : 0, per_key * window);
  }

  void forward(const LayerRun& run, Tensor x) const override {
    projection_.forward(run, run[qkv_], x);
    if (q_norm_) norm_forward(run);
    const AttentionHeads heads = attention_inputs(run);
    if (run.batch.cached != nullptr) return forward_cached(run, heads);
    rotate(run, heads, false);
    attend(run, attended(run), run[log_sum_exp_], heads, options(run));
  }

  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    out_.forward(run, y, run[attended_], residual);
  }
  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override {
    out_.backward_input(run, run[dattended_], dy);
    const AttentionHeads gradient = split(run[dqkv_]);
    attend_backward(run, gradient, run[dattended_].split_last(spec_.head_dim), attended(run),
                    run[log_sum_exp_], attention_inputs(run), options(run));
    rotate_gradient(run);
    if (q_norm_) norm_backward(run, gradient);
    projection_.backward_input(run, dx, run[dqkv_]);
  }

  void backward_weight(const LayerRun& run, Tensor x) const override {
    projection_.backward_weight(run, run[dqkv_], x);
  }

  void backward_output_weight(const LayerRun& run, Tensor dy, Tensor own_dy) const override {
    out_.backward_weight(run, dy, run[attended_], own_dy);
  }

  Linear* reader_of_x() override { return &projection_; }
  Linear* reader_of_dy() override { return &out_; }

 private:
  struct Normed {
    Tensor x, y;        // input and output; in the backward, y is the gradient of both
    Tensor rstd, sums;  // sums: for rows that are sharded over the tensor ranks, else empty
  };

  void declare_norms(Declaration& d) {
    const std::int64_t dim = spec_.head_dim;
    const bool whole = spec_.qk_norm == QkNorm::Whole;
    if (whole) {
      q_norm_->declare_sharded(d, spec_.heads * dim, 1);
      k_norm_->declare_sharded(d, spec_.kv_heads * dim,
                               kv_copies(spec_.kv_heads, d.ranks().tensor));
    } else {  // each rank normalizes its own heads
      q_norm_->declare(d, dim, true);
      k_norm_->declare(d, dim, true);
    }
    normed_ = d.saved({.label = "q, k normed", .width = (heads_ + kv_heads_) * dim});
    const auto statistic = [&](std::int64_t heads) {
      return d.saved({.label = "norm statistics", .width = whole ? 1 : heads, .wide = true});
    };
    q_rstd_ = statistic(heads_);
    k_rstd_ = statistic(kv_heads_);
    if (whole && d.ranks().tensor > 1)
      sums_ = d.workspace({.label = "sums of squares", .width = 1, .wide = true});
  }

  // The tensors of the norm of q or k: (tokens, heads, dim) for QkNorm::PerHead, (tokens, heads *
  // dim) for QkNorm::Whole.
  Normed normed(const LayerRun& run, const AttentionHeads& raw, const AttentionHeads& result,
                bool of_keys) const {
    const Tensor &x = of_keys ? raw.k : raw.q, &y = of_keys ? result.k : result.q;
    const Tensor rstd = run[of_keys ? k_rstd_ : q_rstd_];
    const bool whole = spec_.qk_norm == QkNorm::Whole;
    return {whole ? x.join_last() : x, whole ? y.join_last() : y, rstd.view({rstd.elements()}),
            whole && run.tensor().is_split() ? run[sums_].view({run.size.tokens()}) : Tensor()};
  }

  AttentionHeads split(Tensor qkv) const {
    const std::int64_t dim = spec_.head_dim;
    if (spec_.qkv_per_head) {  // q0 k0 v0 q1 k1 v1 …
      const Tensor triples = qkv.split_last(3 * dim);
      return {triples.part(2, 0, dim), triples.part(2, dim, dim), triples.part(2, 2 * dim, dim)};
    }
    const Tensor heads = qkv.split_last(dim);  // (tokens, heads + 2 kv_heads, dim)
    return {heads.part(1, 0, heads_), heads.part(1, heads_, kv_heads_),
            heads.part(1, heads_ + kv_heads_, kv_heads_)};
  }

  // The q and k that attention reads: in qkv_, or their normalized copy in normed_.
  AttentionHeads attention_inputs(const LayerRun& run) const {
    const AttentionHeads heads = split(run[qkv_]);
    if (!q_norm_) return heads;
    const Tensor normed = run[normed_].split_last(spec_.head_dim);
    return {normed.part(1, 0, heads_), normed.part(1, heads_, kv_heads_), heads.v};
  }

  void norm_forward(const LayerRun& run) const {
    const AttentionHeads raw = split(run[qkv_]), result = attention_inputs(run);
    for (const bool of_keys : {false, true}) {
      const Normed n = normed(run, raw, result, of_keys);
      const Norm& norm = of_keys ? *k_norm_ : *q_norm_;
      if (n.sums)
        norm.forward_sharded(run, n.y, n.rstd, n.x, n.sums);
      else
        norm.forward(run, n.y, {{}, n.rstd}, n.x);
    }
  }

  void norm_backward(const LayerRun& run, const AttentionHeads& gradient) const {
    const AttentionHeads raw = split(run[qkv_]);
    for (const bool of_keys : {false, true}) {
      const Normed n = normed(run, raw, gradient, of_keys);
      const Norm& norm = of_keys ? *k_norm_ : *q_norm_;
      if (n.sums)
        norm.backward_sharded(run, n.y, n.y, n.x, n.rstd, n.sums);
      else
        norm.backward(run, n.y, n.y, n.x, {{}, n.rstd});
    }
  }

  void rotate(const LayerRun& run, const AttentionHeads& heads, bool inverse) const {
    if (!spec_.rope) return;
    const Tensor table = run.context.tables.rope(*spec_.rope);
    for (const Tensor& x : {heads.q, heads.k})
      run.backend().rope(x.part(2, 0, spec_.rope->dim), table, run.batch.positions, inverse);
  }
  // Of each head, only the first dimensions are rotated.
  bool rotates_part() const { return spec_.rope && spec_.rope->dim < spec_.head_dim; }

  // Rotates the gradients of q and k back. Unless a norm changes them afterwards, it finds the
  // maxima of dqkv.
  void rotate_gradient(const LayerRun& run) const {
    if (const Maxima maxima = projection_.gradient_maxima(run))
      run.backend().rope_backward(run[dqkv_], run.context.tables.rope(*spec_.rope),
                                  run.batch.positions, heads_ + kv_heads_, maxima);
    else
      rotate(run, split(run[dqkv_]), true);
  }

  // Rotates, stores the new keys and values in the cache and attends to all of each sequence.
  void forward_cached(const LayerRun& run, const AttentionHeads& heads) const {
    const Tensor keys = run.cache->tensors[0].split_last(spec_.head_dim),
                 values = run.cache->tensors[1].split_last(spec_.head_dim);
    if (rotates_part()) rotate(run, heads, false);
    run.backend().rope_store(
        keys, values, heads.q, heads.k, heads.v, run.batch.cached->rows,
        spec_.rope && !rotates_part() ? run.context.tables.rope(*spec_.rope) : Tensor(),
        run.batch.positions);
    attend_cached(run, attended(run), heads.q, keys, values,
                  {.scale = scale(), .alibi_slopes = slopes(run), .window = spec_.window});
  }

  double scale() const { return 1.0 / std::sqrt(static_cast<double>(spec_.head_dim)); }

  Tensor slopes(const LayerRun& run) const {
    return spec_.alibi ? run.context.tables.slopes : Tensor();
  }

  AttentionOptions options(const LayerRun& run) const {
    return {.scale = scale(), .alibi_slopes = slopes(run), .window = spec_.window};
  }

  Tensor attended(const LayerRun& run) const { return run[attended_].split_last(spec_.head_dim); }

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

}  // namespace

// As in PEFT, queries and values have adapters, or the matrix that has both.
std::vector<LinearUse> linears_of(AttentionSpec& spec) {
  return {{&spec.qkv, "attention.qkv", {0, 2}}, {&spec.out, "attention.out"}};
}

void clear_names_of(AttentionSpec& spec) {
  for (LinearSpec* const linear : {&spec.qkv, &spec.out}) clear_names_of(*linear);
  for (NormSpec* const norm : {&spec.q_norm, &spec.k_norm}) clear_names_of(*norm);
}

std::shared_ptr<Sublayer> make_sublayer(const AttentionSpec& spec) {
  return std::make_shared<Attention>(spec);
}

}  // namespace kintsugi
