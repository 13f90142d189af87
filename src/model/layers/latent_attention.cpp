#include <optional>

#include "core/error.h"
#include "model/layers/attend.h"
#include "model/layers/norm.h"
#include "model/layers/sublayer.h"

namespace kintsugi {
namespace {

// Multi-head latent attention. Every tensor rank computes all latents, and with them its own heads:
// the gradients of the latents, and of their projections, are partial sums.
//
// Training computes the keys and values of each head. Generation keeps only the latents and the
// rotated part of the keys: as keys and values are linear in the latents, each head maps its query
// into the space of the latents, attends there, and maps the result to values.
class LatentAttention final : public Sublayer {
 public:
  explicit LatentAttention(const LatentAttentionSpec& spec)
      : spec_(spec), down_(spec.down), up_(spec.up), out_(spec.out), norm_(spec.norm) {
    if (spec.query_rank == 0) return;
    query_up_.emplace(spec.query_up);
    query_norm_.emplace(spec.query_norm);
  }

  void declare(Declaration& d) override {
    KINTSUGI_CHECK(spec_.heads % d.ranks().tensor == 0, "{} heads on {} ranks", spec_.heads,
                   d.ranks().tensor);
    heads_ = spec_.heads / d.ranks().tensor;
    down_.declare_outputs(d, ParameterGroup::Attention,
                          {query_up_ ? Linear::kOnEveryRank : 1, Linear::kOnEveryRank});
    if (query_up_) {
      query_norm_->declare(d, spec_.query_rank, true);
      query_up_->declare_outputs(d, ParameterGroup::Attention, {1});
    }
    norm_.declare(d, spec_.rank, true);
    up_.declare_outputs(d, ParameterGroup::Attention, {1});
    out_.declare_inputs(d, ParameterGroup::Attention);
    declare_saved(d);
    declare_workspace(d);
    d.cache({.label = "latents", .per_token = cached_width(), .queries = heads_});
    d.positions({.rope = spec_.rope});
    d.context_heads({heads_, heads_, spec_.key_dim(), spec_.value_dim});
    // Scores and weighted sums of values; causal attention computes half of the square.
    const auto length = static_cast<double>(d.length()),
               per_key = 2.0 * static_cast<double>(spec_.heads) *
                         static_cast<double>(spec_.key_dim() + spec_.value_dim);
    d.mixing(per_key * length / 2, per_key * length);
  }

  void forward(const LayerRun& run, Tensor x) const override {
    down_.forward(run, run[projected_], x);
    recompute(run);
    if (query_up_) query_up_->forward(run, run[queries_], run[query_latents_]);
    rotate(run, queries(run), shared_key(run[projected_]), false);
    if (run.batch.cached != nullptr) return forward_cached(run);
    up_.forward(run, run[keys_values_], run[latents_]);
    join_keys(run);
    attend(run, attended(run), run[log_sum_exp_], heads(run), {.scale = spec_.scale});
  }

  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    out_.forward(run, y, run[attended_], residual);
  }

  void recompute(const LayerRun& run) const override {
    norm_.forward(run, run[latents_], {{}, run[rstd_]}, latent(run[projected_]));
    if (query_up_)
      query_norm_->forward(run, run[query_latents_], {{}, run[query_rstd_]},
                           of_queries(run[projected_]));
  }

  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override {
    out_.backward_input(run, run[dattended_], dy);
    join_keys(run);
    const Tensor dprojected = run[dprojected_], dkeys = run[dkeys_].split_last(spec_.key_dim()),
                 dkeys_values = by_head(run[dkeys_values_]), dqueries = query_gradient(run);
    attend_backward(run, {dqueries, dkeys, value_of(dkeys_values)},
                    run[dattended_].split_last(spec_.value_dim), attended(run), run[log_sum_exp_],
                    heads(run), {.scale = spec_.scale});
    run.backend().copy(plain(dkeys_values), plain(dkeys));
    run.backend().sum_heads(shared_key(dprojected), rotated(dkeys));
    rotate(run, dqueries, shared_key(dprojected), true);
    up_.backward_input(run, latent(dprojected), run[dkeys_values_]);
    norm_.backward(run, latent(dprojected), latent(dprojected), latent(run[projected_]),
                   {{}, run[rstd_]});
    if (query_up_) {
      const Tensor gradient = of_queries(dprojected);
      query_up_->backward_input(run, gradient, run[dqueries_]);
      query_norm_->backward(run, gradient, gradient, of_queries(run[projected_]),
                            {{}, run[query_rstd_]});
    }
    down_.backward_input(run, dx, dprojected);
  }

  void backward_weight(const LayerRun& run, Tensor x) const override {
    down_.backward_weight(run, run[dprojected_], x);
    if (query_up_) query_up_->backward_weight(run, run[dqueries_], run[query_latents_]);
    up_.backward_weight(run, run[dkeys_values_], run[latents_]);
  }

  void backward_output_weight(const LayerRun& run, Tensor dy, Tensor own_dy) const override {
    out_.backward_weight(run, dy, run[attended_], own_dy);
  }

  Linear* reader_of_x() override { return &down_; }
  Linear* reader_of_dy() override { return &out_; }

 private:
  void declare_saved(Declaration& d) {
    const auto normed = [&](std::int64_t width, const Linear& reader) {
      return d.saved({.label = "latents",
                      .width = width,
                      .dropped_by = Recompute::Selective,
                      .temporary = reader.keeps_input()});
    };
    const TensorSpec statistic{.label = "norm statistics", .wide = true};
    projected_ = d.saved({.label = "projected latents", .width = down_.outputs()});
    latents_ = normed(spec_.rank, up_);
    rstd_ = d.saved(statistic);
    if (query_up_) {
      query_latents_ = normed(spec_.query_rank, *query_up_);
      query_rstd_ = d.saved(statistic);
      queries_ = d.saved({.label = "queries", .width = query_up_->outputs()});
    }
    keys_values_ = d.saved({.label = "keys, values", .width = up_.outputs()});
    attended_ = d.saved({.label = "attention", .width = heads_ * spec_.value_dim});
    log_sum_exp_ = d.saved({.label = "attention statistics", .width = heads_, .wide = true});
  }

  void declare_workspace(Declaration& d) {
    const auto gradient = [&](std::string_view label, std::int64_t width, bool read_by_weights) {
      return d.workspace(
          {.label = label, .width = width, .training = true, .read_by_weights = read_by_weights});
    };
    const std::int64_t keys = heads_ * spec_.key_dim();
    keys_ = d.workspace({.label = "keys", .width = keys});
    dprojected_ = gradient("gradient of latents", down_.outputs(), true);
    if (query_up_) dqueries_ = gradient("gradient of queries", keys, true);
    dkeys_ = gradient("gradient of keys", keys, false);
    dkeys_values_ = gradient("gradient of keys, values", up_.outputs(), true);
    dattended_ = gradient("gradient of attention", heads_ * spec_.value_dim, false);
    // Queries and results in the space of the latents; training has no use for them.
    const std::int64_t width = heads_ * (cached_width() + spec_.rank);
    absorbed_ = d.workspace(
        {.label = "queries of latents",
         .per = Per::Whole,
         .bytes = [=](const BatchSize& size, DType dtype, bool training) {
           return training ? 0 : size.tokens() * width * static_cast<std::int64_t>(size_of(dtype));
         }});
  }

  // ---- views. Columns of the outputs of `down`: queries or their latents, latent, shared key.
  std::int64_t query_columns() const { return down_.outputs() - cached_width(); }
  Tensor of_queries(const Tensor& x) const { return x.part(1, 0, query_columns()); }
  Tensor latent(const Tensor& x) const { return x.part(1, query_columns(), spec_.rank); }
  Tensor shared_key(const Tensor& x) const {
    return x.part(1, query_columns() + spec_.rank, spec_.rotary_dim);
  }
  // Of (tokens, heads, dim): the parts of queries and keys, and of the outputs of `up`.
  Tensor plain(const Tensor& x) const { return x.part(2, 0, spec_.plain_dim); }
  Tensor rotated(const Tensor& x) const { return x.part(2, spec_.plain_dim, spec_.rotary_dim); }
  Tensor value_of(const Tensor& x) const { return x.part(2, spec_.plain_dim, spec_.value_dim); }
  std::int64_t head_rows() const { return spec_.plain_dim + spec_.value_dim; }
  Tensor by_head(const Tensor& x) const { return x.split_last(head_rows()); }
  Tensor queries(const LayerRun& run) const {
    return (query_up_ ? run[queries_] : of_queries(run[projected_])).split_last(spec_.key_dim());
  }
  Tensor query_gradient(const LayerRun& run) const {
    return (query_up_ ? run[dqueries_] : of_queries(run[dprojected_])).split_last(spec_.key_dim());
  }
  Tensor attended(const LayerRun& run) const { return run[attended_].split_last(spec_.value_dim); }
  AttentionHeads heads(const LayerRun& run) const {
    return {queries(run), run[keys_].split_last(spec_.key_dim()),
            value_of(by_head(run[keys_values_]))};
  }

  void rotate(const LayerRun& run, const Tensor& queries, const Tensor& key, bool inverse) const {
    const Tensor table = run.context.tables.rope(spec_.rope);
    for (const Tensor& x : {rotated(queries), key.split_last(spec_.rotary_dim)})
      run.backend().rope(x, table, run.batch.positions, inverse, RopePairs::Adjacent);
  }

  // The keys of all heads, which share the rotated part.
  void join_keys(const LayerRun& run) const {
    const Tensor keys = run[keys_].split_last(spec_.key_dim());
    run.backend().copy(plain(keys), plain(by_head(run[keys_values_])));
    run.backend().copy(rotated(keys), shared_key(run[projected_]).repeat(1, heads_));
  }

  // ---- generation. A score is q k^T = q (U c)^T = (q U) c^T for the latent c and the head's rows
  // U of `up`; a weighted sum of values V c is V times that of the latents.
  struct Absorbed {
    Tensor queries;  // (tokens, heads, rank + rotary_dim): in the space of what is cached
    Tensor results;  // (tokens, heads, rank): weighted sums of latents
  };

  std::int64_t cached_width() const { return spec_.rank + spec_.rotary_dim; }

  Absorbed absorbed(const LayerRun& run) const {
    const Shape queries{run.size.tokens(), heads_, cached_width()},
        results{run.size.tokens(), heads_, spec_.rank};
    const Tensor memory(run[absorbed_].data(), run.store().dtype(),
                        {queries.elements() + results.elements()});
    return {memory.rows(0, queries.elements()).view(queries),
            memory.rows(queries.elements(), results.elements()).view(results)};
  }

  void store(const LayerRun& run, const Tensor& cache) const {
    const Tensor rows = run.batch.cached->rows;
    run.backend().scatter_rows(cache.part(2, 0, spec_.rank), run[latents_].split_last(spec_.rank),
                               rows);
    run.backend().scatter_rows(cache.part(2, spec_.rank, spec_.rotary_dim),
                               shared_key(run[projected_]).split_last(spec_.rotary_dim), rows);
  }

  void forward_cached(const LayerRun& run) const {
    const Tensor cache = run.cache->tensors[0].split_last(cached_width());  // one head for all
    const auto [queries_of_latents, results] = absorbed(run);
    const Tensor q = queries(run), by_heads = up_.weight(run).split_first(head_rows());
    MatmulOptions options = run.generation_options();
    store(run, cache);
    run.backend().matmul(queries_of_latents.part(2, 0, spec_.rank).transpose(0, 1),
                         plain(q).transpose(0, 1), by_heads.part(1, 0, spec_.plain_dim), options);
    run.backend().copy(queries_of_latents.part(2, spec_.rank, spec_.rotary_dim), rotated(q));
    attend_cached(run, results, queries_of_latents, cache, cache.part(2, 0, spec_.rank),
                  {.scale = spec_.scale});
    options.transpose_b = true;
    run.backend().matmul(attended(run).transpose(0, 1), results.transpose(0, 1),
                         by_heads.part(1, spec_.plain_dim, spec_.value_dim), options);
  }

  LatentAttentionSpec spec_;
  std::int64_t heads_ = 0;  // of this rank
  Linear down_, up_, out_;
  Norm norm_;
  std::optional<Linear> query_up_;
  std::optional<Norm> query_norm_;
  Saved projected_;                // (tokens, outputs of down); queries and shared key rotated
  Saved latents_, query_latents_;  // (tokens, rank), (tokens, query_rank): normalized
  Saved rstd_, query_rstd_;        // (tokens)
  Saved queries_;                  // (tokens, heads key_dim), rotated
  Saved keys_values_;              // (tokens, heads (plain_dim + value_dim))
  Saved attended_;                 // (tokens, heads value_dim)
  Saved log_sum_exp_;              // (tokens, heads)
  Workspace keys_;                 // (tokens, heads key_dim): joined in forward and backward
  Workspace dprojected_, dqueries_, dkeys_, dkeys_values_, dattended_;
  Workspace absorbed_;
};

}  // namespace

// As with other attention, what makes queries and values has adapters.
std::vector<LinearUse> linears_of(LatentAttentionSpec& spec) {
  std::vector<LinearUse> all = {{&spec.down, "attention.qkv"}};
  if (spec.query_rank > 0)
    all.push_back({&spec.query_up, "attention.up", {0}});
  else
    all[0].adapted = {0};
  all.push_back({&spec.up, "attention.up", {0}});
  all.push_back({&spec.out, "attention.out"});
  return all;
}

void clear_names_of(LatentAttentionSpec& spec) {
  for (LinearSpec* const linear : {&spec.down, &spec.query_up, &spec.up, &spec.out})
    clear_names_of(*linear);
  for (NormSpec* const norm : {&spec.query_norm, &spec.norm}) clear_names_of(*norm);
}

std::shared_ptr<Sublayer> make_sublayer(const LatentAttentionSpec& spec) {
  return std::make_shared<LatentAttention>(spec);
}

}  // namespace kintsugi
