// Retention in its chunkwise form (backend/cpu/retention.cpp has the formulas): sums of all chunks,
// a scan over them, scores inside the chunks. A matmul is one cuBLASLt call per head for all chunks
// of all sequences; the kernels between the matmuls process all heads at once.
#include "backend/gpu/retention.h"

#include "backend/gpu/kernels.h"
#include "backend/gpu/matmul.h"

namespace kintsugi::gpu {
namespace {

// Whether the sequences of x follow each other without a gap.
bool sequences_adjacent(const Tensor& x) {
  return x.extent(0) == 1 || x.stride(0) == x.extent(1) * x.stride(1);
}

// The chunks of one batched matmul: all chunks, the full-length chunks of one sequence, or the
// shorter last chunks of all sequences.
struct Group {
  enum class Kind { All, Full, Last } kind;
  std::int64_t sequence = 0;
};

class Chunks {
 public:
  Chunks(const Context& context, const RetentionSizes& n, std::initializer_list<Tensor> operands)
      : context_(context),
        n_(n),
        chunk_(n.chunk_tokens()),
        full_(n.length / chunk_),
        last_(n.length % chunk_),
        all_(last_ == 0) {
    for (const Tensor& x : operands) all_ = all_ && sequences_adjacent(x);
  }

  // c = op(a) op(b) in every chunk of every head. An operand has either tokens, (batch, length,
  // heads, dim), or slots, (heads, batch x chunks, rows, columns).
  struct Operand {
    Tensor x;
    enum class Kind { Tokens, States, Scores } kind;
  };
  void matmul(const Operand& c, const Operand& a, const Operand& b,
              const MatmulOptions& options) const {
    for (std::int64_t head = 0; head < n_.heads; ++head) {
      const auto run = [&](const Group& group) {
        context_.matmul.run(context_, view(c, head, group), view(a, head, group),
                            view(b, head, group), options);
      };
      if (all_) {
        run({Group::Kind::All});
        continue;
      }
      for (std::int64_t sequence = 0; sequence < n_.batch; ++sequence)
        run({Group::Kind::Full, sequence});
      if (last_ > 0) run({Group::Kind::Last});
    }
  }

 private:
  Tensor view(const Operand& operand, std::int64_t head, const Group& group) const {
    return operand.kind == Operand::Kind::Tokens
               ? tokens(operand.x.select(2, head), group)
               : slots(operand.x.select(0, head), group, operand.kind == Operand::Kind::Scores);
  }
  Tensor tokens(const Tensor& x, const Group& group) const {  // (batch, length, dim)
    switch (group.kind) {
      case Group::Kind::All:
        return x.flatten_first().split_first(chunk_);
      case Group::Kind::Full:
        return x.select(0, group.sequence).part(0, 0, full_ * chunk_).split_first(chunk_);
      case Group::Kind::Last:
        break;
    }
    return x.part(1, full_ * chunk_, last_);
  }
  Tensor slots(const Tensor& x, const Group& group, bool scores) const {
    switch (group.kind) {
      case Group::Kind::All:
        return x;
      case Group::Kind::Full:
        return x.part(0, group.sequence * n_.chunks(), full_);
      case Group::Kind::Last:
        break;
    }
    const Tensor last = x.split_first(n_.chunks()).select(1, full_);
    return scores ? last.part(1, 0, last_).part(2, 0, last_) : last;
  }

  const Context& context_;
  RetentionSizes n_;
  std::int64_t chunk_, full_, last_;
  bool all_;
};

using Operand = Chunks::Operand;
Operand tokens(const Tensor& x) { return {x, Operand::Kind::Tokens}; }
Operand states(const Tensor& x) { return {x, Operand::Kind::States}; }
Operand scores(const Tensor& x) { return {x, Operand::Kind::Scores}; }

// A view of a copy in the workspace, (heads, batch, length, dim), as (batch, length, heads, dim).
Tensor as_operand(const Tensor& copy) { return copy.transpose(0, 1).transpose(1, 2); }

// state = g^length state + sum of factor x_i^T y_i, with the whole length as one chunk
void add_to_state(const Context& context, const Tensor& state, const Tensor& x, const Tensor& y,
                  const Tensor& workspace, const RetentionOptions& options,
                  RetentionFactor factor) {
  RetentionSizes n = retention_sizes(x, y, options);
  const RetentionWorkspace buffers(workspace, y.dtype(), n, false);
  retention_tables(context, buffers, options);
  n.chunk = n.length;
  const Tensor scaled = as_operand(buffers.keys);
  scale_rows(context, buffers, n, {scaled, x, factor}, {});
  decay_state(context, state, n.length, {}, {}, options);
  for (std::int64_t head = 0; head < n.heads; ++head)
    context.matmul.run(context, state.select(1, head), scaled.select(2, head), y.select(2, head),
                       {.transpose_a = true, .accumulate = true});
}

}  // namespace

void retention_forward(const Context& context, Tensor out, Tensor q, Tensor k, Tensor v,
                       Tensor state, Tensor workspace, const RetentionOptions& options) {
  const RetentionSizes n = retention_sizes(k, v, options);
  if (out.elements() == 0) return;
  if (n.length == 1) return retention_token(context, out, q, k, v, state, options);
  const RetentionWorkspace buffers(workspace, v.dtype(), n, false);
  const Tensor keys = as_operand(buffers.keys), queries = as_operand(buffers.queries);
  const Chunks chunks(context, n, {out, q, k, v});
  const bool several = n.chunks() > 1, has_states = several || state;
  retention_tables(context, buffers, options);
  if (has_states) {
    scale_rows(context, buffers, n, {queries, q, RetentionFactor::FromState},
               {keys, k, RetentionFactor::ToState});
    if (several)
      chunks.matmul(states(buffers.states), tokens(keys), tokens(v), {.transpose_a = true});
    scan_chunks(context, buffers.states, state, buffers, n, false);
    chunks.matmul(tokens(out), tokens(queries), states(buffers.states), {});
  }
  chunks.matmul(scores(buffers.scores), tokens(q), tokens(k), {.transpose_b = true});
  decay_scores(context, buffers.scores, {}, buffers, n);
  chunks.matmul(tokens(out), scores(buffers.scores), tokens(v), {.accumulate = has_states});
}

void retention_backward(const Context& context, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                        Tensor q, Tensor k, Tensor v, Tensor state, Tensor dstate, Tensor workspace,
                        const RetentionOptions& options) {
  const RetentionSizes n = retention_sizes(k, v, options);
  if (dout.elements() == 0) return;
  const RetentionWorkspace buffers(workspace, v.dtype(), n, true);
  const Tensor keys = as_operand(buffers.keys), queries = as_operand(buffers.queries);
  const Chunks chunks(context, n, {dq, dk, dv, dout, q, k, v});
  const bool several = n.chunks() > 1, has_states = several || state,
             has_dstates = several || dstate;
  retention_tables(context, buffers, options);
  if (has_states || has_dstates)
    scale_rows(context, buffers, n, {queries, q, RetentionFactor::FromState},
               {keys, k, RetentionFactor::ToState});
  if (several) {
    chunks.matmul(states(buffers.states), tokens(keys), tokens(v), {.transpose_a = true});
    chunks.matmul(states(buffers.dstates), tokens(queries), tokens(dout), {.transpose_a = true});
  }
  // Gradients through the states. Rows of dq and dk are scaled after the matmuls, because they are
  // shorter than rows of v and dout.
  ScaledRows dq_rows = {}, dk_rows = {};
  if (has_states) {
    scan_chunks(context, buffers.states, state, buffers, n, false);
    chunks.matmul(tokens(dq), tokens(dout), states(buffers.states), {.transpose_b = true});
    dq_rows = {dq, dq, RetentionFactor::FromState};
  }
  if (has_dstates) {
    scan_chunks(context, buffers.dstates, dstate, buffers, n, true);
    chunks.matmul(tokens(dk), tokens(v), states(buffers.dstates), {.transpose_b = true});
    chunks.matmul(tokens(dv), tokens(keys), states(buffers.dstates), {});
    dk_rows = {dk, dk, RetentionFactor::ToState};
  }
  if (has_states || has_dstates) scale_rows(context, buffers, n, dq_rows, dk_rows);
  // Gradients inside the chunks.
  chunks.matmul(scores(buffers.scores), tokens(q), tokens(k), {.transpose_b = true});
  chunks.matmul(scores(buffers.dscores), tokens(dout), tokens(v), {.transpose_b = true});
  decay_scores(context, buffers.scores, buffers.dscores, buffers, n);
  chunks.matmul(tokens(dq), scores(buffers.dscores), tokens(k), {.accumulate = has_states});
  chunks.matmul(tokens(dk), scores(buffers.dscores), tokens(q),
                {.transpose_a = true, .accumulate = has_dstates});
  chunks.matmul(tokens(dv), scores(buffers.scores), tokens(dout),
                {.transpose_a = true, .accumulate = has_dstates});
}

void retention_state(const Context& context, Tensor state, Tensor k, Tensor v, Tensor workspace,
                     const RetentionOptions& options) {
  if (k.extent(1) == 1) {
    return decay_state(context, state, 1, k, v, options);
  }
  add_to_state(context, state, k, v, workspace, options, RetentionFactor::ToState);
}

void retention_decay(const Context& context, Tensor state, std::int64_t tokens,
                     const RetentionOptions& options) {
  decay_state(context, state, tokens, {}, {}, options);
}

void retention_state_backward(const Context& context, Tensor dstate, Tensor q, Tensor dout,
                              Tensor workspace, const RetentionOptions& options) {
  add_to_state(context, dstate, q, dout, workspace, options, RetentionFactor::FromState);
}

}  // namespace kintsugi::gpu
