#include "model/stash.h"

#include <fmt/core.h>

namespace kintsugi {
namespace {

enum class Kept : std::uint8_t { Always, UnlessFull, UnlessSelective };

std::int64_t up_columns(const ModelConfig& c) {
  return c.traits().activation == ActivationKind::Swiglu ? 2 * c.ffn_size : c.ffn_size;
}

// The one list of a stash's fields: f(field, name, dtype, shape, kept).
template <class F>
void for_each_field(BlockStash& s, const ModelConfig& c, DType dtype, const PassSize& size,
                    const F& f) {
  const std::int64_t tokens = size.tokens(), rows = size.rows(), hidden = c.hidden_size;
  const bool means = c.traits().norm == NormKind::Layer;
  const DType wide = accumulator_of(dtype);
  f(s.input, "block inputs", dtype, Shape{rows, hidden}, Kept::Always);
  if (means) f(s.norm1.mean, "norm statistics", wide, Shape{rows}, Kept::UnlessFull);
  f(s.norm1.rstd, "norm statistics", wide, Shape{rows}, Kept::UnlessFull);
  f(s.normed1, "norm outputs", dtype, Shape{rows, hidden}, Kept::UnlessSelective);
  f(s.qkv, "q, k, v", dtype, Shape{tokens, c.qkv_rows()}, Kept::UnlessFull);
  if (c.traits().qk_norm) {
    f(s.qk_normed, "q, k normed", dtype, Shape{tokens, (c.heads + c.kv_heads) * c.head_dim},
      Kept::UnlessFull);
    f(s.q_rstd, "norm statistics", wide, Shape{tokens * c.heads}, Kept::UnlessFull);
    f(s.k_rstd, "norm statistics", wide, Shape{tokens * c.kv_heads}, Kept::UnlessFull);
  }
  f(s.attended, "attention", dtype, Shape{tokens, c.heads * c.head_dim}, Kept::UnlessFull);
  f(s.log_sum_exp, "attention statistics", wide, Shape{size.sequences, c.heads, size.length},
    Kept::UnlessFull);
  f(s.middle, "block middles", dtype, Shape{rows, hidden}, Kept::UnlessFull);
  if (means) f(s.norm2.mean, "norm statistics", wide, Shape{rows}, Kept::UnlessFull);
  f(s.norm2.rstd, "norm statistics", wide, Shape{rows}, Kept::UnlessFull);
  f(s.normed2, "norm outputs", dtype, Shape{rows, hidden}, Kept::UnlessSelective);
  f(s.up, "mlp", dtype, Shape{tokens, up_columns(c)}, Kept::UnlessFull);
  f(s.activated, "mlp activations", dtype, Shape{tokens, c.ffn_size}, Kept::UnlessSelective);
}

bool dropped(Kept kept, Recompute recompute) {
  if (recompute == Recompute::Full) return kept != Kept::Always;
  return recompute == Recompute::Selective && kept == Kept::UnlessSelective;
}

}  // namespace

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::None:
      return "none";
    case Recompute::Selective:
      return "selective";
    case Recompute::Full:
      return "full";
  }
  return "?";
}

Recompute parse_recompute(std::string_view text) {
  for (const Recompute mode : {Recompute::None, Recompute::Selective, Recompute::Full})
    if (text == to_string(mode)) return mode;
  user_error("'{}' is not a recompute mode: none, selective or full", text);
}

BlockStash allocate_shared_stash(Arena& arena, const ModelConfig& config, DType dtype,
                                 const PassSize& size, Recompute recompute) {
  BlockStash shared;
  for_each_field(
      shared, config, dtype, size,
      [&](Tensor& field, std::string_view name, DType type, const Shape& shape, Kept kept) {
        if (!dropped(kept, recompute)) return;
        if (&field == &shared.normed2 && shared.normed1) {
          field = shared.normed1;  // never needed at the same time
          return;
        }
        field = arena.allocate(Region::Workspace, fmt::format("recomputed {}", name), type, shape);
      });
  return shared;
}

BlockStash allocate_stash(Arena& arena, const ModelConfig& config, DType dtype,
                          const PassSize& size, Recompute recompute, const BlockStash& shared,
                          bool with_input) {
  BlockStash stash = recompute == Recompute::None ? BlockStash{} : shared;
  stash.activation_rebuilt = recompute == Recompute::Selective;
  for_each_field(
      stash, config, dtype, size,
      [&](Tensor& field, std::string_view name, DType type, const Shape& shape, Kept kept) {
        if (dropped(kept, recompute)) return;  // stays the shared one
        if (&field == &stash.input && !with_input) return;
        field = arena.allocate(Region::Activations, std::string(name), type, shape);
      });
  return stash;
}

BlockStash resize_stash(BlockStash stash, const ModelConfig& config, const PassSize& size) {
  const DType dtype = stash.qkv.dtype();
  for_each_field(stash, config, dtype, size,
                 [&](Tensor& field, std::string_view, DType type, const Shape& shape, Kept) {
                   if (&field == &stash.input && !field) return;
                   KINTSUGI_CHECK(shape.elements() <= field.elements(), "a stash of {} holds no {}",
                                  to_string(field.shape()), to_string(shape));
                   field = Tensor(field.data(), type, shape);
                 });
  return stash;
}

BlockWorkspace allocate_workspace(Arena& arena, const ModelConfig& c, DType dtype,
                                  const PassSize& size, bool training) {
  const auto take = [&](const char* name, std::int64_t rows, std::int64_t width) {
    return arena.allocate(Region::Workspace, name, dtype, {rows, width});
  };
  const std::int64_t tokens = size.tokens(), rows = size.rows();
  const bool split = size.row_parts > 1;
  BlockWorkspace w;
  w.branch = take("branch", tokens, c.hidden_size);
  w.own_branch = split ? take("branch, own rows", rows, c.hidden_size) : w.branch;
  if (split) w.gathered = take("norm outputs of all ranks", tokens, c.hidden_size);
  if (!training) return w;
  w.dnormed = take("gradient of norm outputs", tokens, c.hidden_size);
  w.own_dnormed =
      split ? take("gradient of norm outputs, own rows", rows, c.hidden_size) : w.dnormed;
  w.dqkv = take("gradient of q, k, v", tokens, c.qkv_rows());
  w.dattended = take("gradient of attention", tokens, c.heads * c.head_dim);
  w.dup = take("gradient of mlp", tokens, up_columns(c));
  if (c.traits().activation == ActivationKind::Swiglu)
    w.dactivated = take("gradient of mlp activations", tokens, c.ffn_size);
  return w;
}

BlockWorkspace allocate_kept(Arena& arena, const ModelConfig& c, DType dtype, const PassSize& size,
                             BlockWorkspace w) {
  const auto take = [&](const char* name, std::int64_t rows, std::int64_t width) {
    return arena.allocate(Region::Activations, name, dtype, {rows, width});
  };
  w.dqkv = take("kept gradient of q, k, v", size.tokens(), c.qkv_rows());
  w.dup = take("kept gradient of mlp", size.tokens(), up_columns(c));
  w.kept_attention = take("kept gradient of branches", size.rows(), c.hidden_size);
  w.kept_mlp = take("kept gradient of branches", size.rows(), c.hidden_size);
  return w;
}

BlockWorkspace resize_workspace(const BlockWorkspace& w, const PassSize& size) {
  const auto tokens = [&](const Tensor& x) { return x ? x.rows(0, size.tokens()) : x; };
  const auto rows = [&](const Tensor& x) { return x ? x.rows(0, size.rows()) : x; };
  return {.branch = tokens(w.branch),
          .own_branch = rows(w.own_branch),
          .gathered = tokens(w.gathered),
          .dnormed = tokens(w.dnormed),
          .own_dnormed = rows(w.own_dnormed),
          .dqkv = tokens(w.dqkv),
          .dattended = tokens(w.dattended),
          .dup = tokens(w.dup),
          .dactivated = tokens(w.dactivated),
          .kept_attention = rows(w.kept_attention),
          .kept_mlp = rows(w.kept_mlp)};
}

}  // namespace kintsugi
