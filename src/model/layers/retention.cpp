#include <cmath>

#include "core/error.h"
#include "model/layers/sublayer.h"
#include "model/shard.h"

namespace kintsugi {
namespace {

// RetNet's token mixer: projections to q, k, v and a gate, RoPE, chunkwise retention, a norm per
// head times the gate, output projection, on this rank's heads. With context parallelism, ranks
// send only the state between chunks. Generation keeps one state per head.
class Retention final : public Sublayer {
 public:
  explicit Retention(const RetentionSpec& spec)
      : spec_(spec), projection_(spec.projection), out_(spec.out) {}

  void declare(Declaration& d) override {
    const int tp = d.ranks().tensor;
    KINTSUGI_CHECK(spec_.heads % tp == 0, "{} heads on {} ranks", spec_.heads, tp);
    heads_ = spec_.heads / tp;
    projection_.declare_outputs(d, ParameterGroup::Retention, {1});
    out_.declare_inputs(d, ParameterGroup::Retention);
    const std::int64_t values = heads_ * spec_.v_dim, all = projection_.outputs();
    projected_ = d.saved({.label = "q, k, v, gate", .width = all});
    retained_ = d.saved({.label = "retention", .width = values});
    rstd_ = d.saved({.label = "norm statistics", .width = heads_, .wide = true});
    gated_ = d.saved({.label = "gated retention",
                      .width = values,
                      .dropped_by = Recompute::Selective,
                      .temporary = out_.keeps_input()});
    dprojected_ = d.workspace({.label = "gradient of q, k, v, gate",
                               .width = all,
                               .training = true,
                               .read_by_weights = true});
    dretained_ = d.workspace({.label = "gradient of retention", .width = values, .training = true});
    const int chunks = d.ranks().context > 1 ? 2 : 1;  // on this rank
    scratch_ = d.workspace({.label = "retention chunks",
                            .per = Per::Whole,
                            .bytes = [=, heads = heads_, k = spec_.k_dim, v = spec_.v_dim](
                                         const BatchSize& size, DType dtype, bool training) {
                              const RetentionSizes sizes{.batch = size.sequences,
                                                         .length = size.length / chunks,
                                                         .heads = heads,
                                                         .k_dim = k,
                                                         .v_dim = v};
                              return static_cast<std::int64_t>(
                                  retention_workspace_bytes(dtype, sizes, training));
                            }});
    if (chunks > 1) declare_states(d);
    d.positions({.rope = spec_.rope, .decays = heads_});
    d.cache(
        {.label = "retention state", .fixed = heads_ * spec_.k_dim * spec_.v_dim, .wide = true});
    // Each token adds an outer product to the state, and its query reads the state.
    const double flops = 4.0 * static_cast<double>(spec_.heads * spec_.k_dim * spec_.v_dim);
    d.mixing(flops, flops);
  }

  void forward(const LayerRun& run, Tensor x) const override {
    KINTSUGI_CHECK(!run.batch.document_start, "retention does not support document masks");
    projection_.forward(run, run[projected_], x);
    const Parts parts = split(run[projected_]);
    rotate(run, parts, false);
    if (run.batch.cached != nullptr) {
      forward_cached(run, parts);
    } else if (run.context.context != nullptr) {
      forward_chunks(run, parts);
    } else {
      const auto by_sequence = [&](const Tensor& t) { return t.split_first(run.batch.length); };
      run.backend().retention_forward(by_sequence(run[retained_].split_last(spec_.v_dim)),
                                      by_sequence(parts.q), by_sequence(parts.k),
                                      by_sequence(parts.v), {}, run[scratch_], options(run, 0));
    }
    recompute(run);
  }

  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    out_.forward(run, y, run[gated_], residual);
  }
  void recompute(const LayerRun& run) const override {
    run.backend().gated_norm_forward(
        run[gated_].split_last(spec_.v_dim), run[rstd_].view({run.size.tokens() * heads_}),
        run[retained_].split_last(spec_.v_dim), split(run[projected_]).gate, spec_.norm_eps);
  }

  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override {
    out_.backward_input(run, run[dretained_], dy);
    const Parts parts = split(run[projected_]), gradients = split(run[dprojected_]);
    const Tensor dretained = run[dretained_].split_last(spec_.v_dim);
    run.backend().gated_norm_backward(dretained, gradients.gate, dretained,
                                      run[retained_].split_last(spec_.v_dim), parts.gate,
                                      run[rstd_].view({run.size.tokens() * heads_}));
    if (run.context.context != nullptr) {
      backward_chunks(run, parts, gradients, dretained);
    } else {
      const auto by_sequence = [&](const Tensor& t) { return t.split_first(run.batch.length); };
      run.backend().retention_backward(
          by_sequence(gradients.q), by_sequence(gradients.k), by_sequence(gradients.v),
          by_sequence(dretained), by_sequence(parts.q), by_sequence(parts.k), by_sequence(parts.v),
          {}, {}, run[scratch_], options(run, 0));
    }
    rotate(run, gradients, true);
    projection_.backward_input(run, dx, run[dprojected_]);
  }

  void backward_weight(const LayerRun& run, Tensor x) const override {
    projection_.backward_weight(run, run[dprojected_], x);
  }

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

  void declare_states(Declaration& d) {
    const TensorSpec state{.label = "retention states",
                           .per = Per::Sequence,
                           .width = heads_ * spec_.k_dim * spec_.v_dim,
                           .wide = true};
    for (Saved& id : before_) id = d.saved(state);
    for (Workspace& id : states_) id = d.workspace(state);
  }

  Parts split(Tensor x) const {
    const std::int64_t keys = heads_ * spec_.k_dim, values = heads_ * spec_.v_dim;
    return {x.part(1, 0, keys).split_last(spec_.k_dim),
            x.part(1, keys, keys).split_last(spec_.k_dim),
            x.part(1, 2 * keys, values).split_last(spec_.v_dim),
            x.part(1, 2 * keys + values, values).split_last(spec_.v_dim)};
  }

  void rotate(const LayerRun& run, const Parts& parts, bool inverse) const {
    const Tensor table = run.context.tables.rope(spec_.rope);
    for (const Tensor& x : {parts.q, parts.k})
      run.backend().rope(x, table, run.batch.positions, inverse, RopePairs::Adjacent);
  }

  RetentionOptions options(const LayerRun& run, std::int64_t first_position) const {
    return {.scale = 1.0 / std::sqrt(static_cast<double>(spec_.k_dim)),
            .decays = run.context.tables.decays,
            .first_position = first_position};
  }

  Tensor state(const LayerRun& run, const Tensor& memory) const {
    return memory.view({run.batch.sequences, heads_, spec_.k_dim, spec_.v_dim});
  }

  // ---- context parallelism. Rank r of n has chunks r and 2n - 1 - r of every sequence. States are
  // sent from chunk to chunk: up the ranks through their earlier chunks, and back down through the
  // later ones. Every rank first computes the states of its own chunks, so that only adding a
  // decayed state is on the critical path.

  // One of the two chunks of a tensor of all local tokens; chunk 0 is the earlier one.
  Tensor chunk_of(const LayerRun& run, const Tensor& x, int chunk) const {
    const std::int64_t half = run.batch.length / 2;
    return x.split_first(run.batch.length).part(1, chunk * half, half);
  }

  ChunkInputs chunk_inputs(const LayerRun& run, const Parts& parts, int chunk) const {
    const Communicator& group = *run.context.context;
    const ContextShard shard{group.size(), group.rank(), group.size() * run.batch.length};
    return {chunk_of(run, parts.q, chunk), chunk_of(run, parts.k, chunk),
            chunk_of(run, parts.v, chunk),
            options(run, shard.position(chunk * run.batch.length / 2))};
  }

  // sum += `other`, decayed over the tokens of one chunk.
  void add_decayed(const LayerRun& run, Tensor sum, Tensor other) const {
    const Tensor left = state(run, run[states_[4]]);
    run.backend().copy(left, other);
    run.backend().retention_decay(left, run.batch.length / 2, options(run, 0));
    run.backend().add(sum, left);
  }

  // Updates the states of all sequences in the batch.
  void forward_cached(const LayerRun& run, const Parts& parts) const {
    const CachedTokens& cached = *run.batch.cached;
    const Tensor out = run[retained_].split_last(spec_.v_dim), all = run.cache->tensors[0];
    const Tensor states = all.view({all.extent(0), heads_, spec_.k_dim, spec_.v_dim});
    if (const std::int64_t n = cached.singles; n > 0)
      run.backend().retention_step(out.rows(0, n), states, parts.q.rows(0, n), parts.k.rows(0, n),
                                   parts.v.rows(0, n), cached.slots, run.batch.positions.rows(0, n),
                                   options(run, 0));
    for (const CachedTokens::Chunk& chunk : cached.chunks) {
      const auto sequence = [&](const Tensor& x) {
        return x.rows(chunk.first, chunk.tokens).split_first(chunk.tokens);
      };
      const Tensor state = states.rows(chunk.slot, 1);
      if (chunk.position == 0) run.backend().fill(state, 0.0);
      const RetentionOptions at = options(run, chunk.position);
      const Tensor k = sequence(parts.k), v = sequence(parts.v);
      run.backend().retention_forward(sequence(out), sequence(parts.q), k, v, state, run[scratch_],
                                      at);
      run.backend().retention_state(state, k, v, run[scratch_], at);
    }
  }

  void forward_chunks(const LayerRun& run, const Parts& parts) const {
    Backend& backend = run.backend();
    Communicator& group = *run.context.context;
    const int rank = group.rank(), last = group.size() - 1;
    const Tensor before[2] = {state(run, run[before_[0]]), state(run, run[before_[1]])};
    const Tensor sums[2] = {state(run, run[states_[0]]), state(run, run[states_[1]])};
    const ChunkInputs inputs[2] = {chunk_inputs(run, parts, 0), chunk_inputs(run, parts, 1)};
    for (int chunk = 0; chunk < 2; ++chunk) {
      backend.fill(sums[chunk], 0.0);
      backend.retention_state(sums[chunk], inputs[chunk].k, inputs[chunk].v, run[scratch_],
                              inputs[chunk].options);
    }
    // Receives the state before a chunk, computes the one after it in `sums`, and sends it on.
    const auto propagate = [&](int chunk, int from, int to) {
      if (from >= 0)
        group.wait(group.receive(before[chunk], from));
      else if (chunk == 0)
        backend.fill(before[0], 0.0);
      add_decayed(run, sums[chunk], before[chunk]);
      if (to >= 0) group.wait(group.send(sums[chunk], to));
    };
    propagate(0, rank - 1, rank < last ? rank + 1 : -1);
    if (rank == last) backend.copy(before[1], sums[0]);
    propagate(1, rank < last ? rank + 1 : -1, rank - 1);
    for (int chunk = 0; chunk < 2; ++chunk) {
      const ChunkInputs& in = inputs[chunk];
      backend.retention_forward(chunk_of(run, run[retained_].split_last(spec_.v_dim), chunk), in.q,
                                in.k, in.v, before[chunk], run[scratch_], in.options);
    }
  }

  // The gradients of states are sent the other way.
  void backward_chunks(const LayerRun& run, const Parts& parts, const Parts& gradients,
                       Tensor dretained) const {
    Backend& backend = run.backend();
    Communicator& group = *run.context.context;
    const int rank = group.rank(), last = group.size() - 1;
    const Tensor after[2] = {state(run, run[states_[0]]), state(run, run[states_[1]])};
    const Tensor sums[2] = {state(run, run[states_[2]]), state(run, run[states_[3]])};
    const ChunkInputs inputs[2] = {chunk_inputs(run, parts, 0), chunk_inputs(run, parts, 1)};
    for (int chunk = 0; chunk < 2; ++chunk) {
      backend.fill(sums[chunk], 0.0);
      backend.retention_state_backward(sums[chunk], inputs[chunk].q,
                                       chunk_of(run, dretained, chunk), run[scratch_],
                                       inputs[chunk].options);
    }
    const auto propagate = [&](int chunk, int from, int to) {
      if (from >= 0)
        group.wait(group.receive(after[chunk], from));
      else if (chunk == 1)
        backend.fill(after[1], 0.0);
      add_decayed(run, sums[chunk], after[chunk]);
      if (to >= 0) group.wait(group.send(sums[chunk], to));
    };
    propagate(1, rank - 1, rank < last ? rank + 1 : -1);
    if (rank == last) backend.copy(after[0], sums[1]);
    propagate(0, rank < last ? rank + 1 : -1, rank - 1);
    for (int chunk = 0; chunk < 2; ++chunk) {
      const ChunkInputs& in = inputs[chunk];
      backend.retention_backward(
          chunk_of(run, gradients.q, chunk), chunk_of(run, gradients.k, chunk),
          chunk_of(run, gradients.v, chunk), chunk_of(run, dretained, chunk), in.q, in.k, in.v,
          state(run, run[before_[chunk]]), after[chunk], run[scratch_], in.options);
    }
  }

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

}  // namespace

std::vector<LinearUse> linears_of(RetentionSpec& spec) {
  return {{&spec.projection, "retention.in", {0, 2}}, {&spec.out, "retention.out"}};
}

void clear_names_of(RetentionSpec& spec) {
  for (LinearSpec* const linear : {&spec.projection, &spec.out}) clear_names_of(*linear);
}

std::shared_ptr<Sublayer> make_sublayer(const RetentionSpec& spec) {
  return std::make_shared<Retention>(spec);
}

}  // namespace kintsugi
