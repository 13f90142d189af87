#include "model/stash.h"

#include <fmt/core.h>

namespace kintsugi {
namespace {

enum class Kept : std::uint8_t { Always, UnlessFull, UnlessSelective };

// The one list of a stash's fields: f(field, name, dtype, shape, kept).
template <class F>
void for_each_field(BlockStash& s, const ModelConfig& c, DType dtype, std::int64_t sequences,
                    std::int64_t length, const F& f) {
  const std::int64_t tokens = sequences * length, hidden = c.hidden_size;
  const std::int64_t up =
      c.traits().activation == ActivationKind::Swiglu ? 2 * c.ffn_size : c.ffn_size;
  const bool means = c.traits().norm == NormKind::Layer;
  const DType wide = accumulator_of(dtype);
  f(s.input, "block inputs", dtype, Shape{tokens, hidden}, Kept::Always);
  if (means) f(s.norm1.mean, "norm statistics", wide, Shape{tokens}, Kept::UnlessFull);
  f(s.norm1.rstd, "norm statistics", wide, Shape{tokens}, Kept::UnlessFull);
  f(s.normed1, "norm outputs", dtype, Shape{tokens, hidden}, Kept::UnlessSelective);
  f(s.qkv, "q, k, v", dtype, Shape{tokens, c.qkv_rows()}, Kept::UnlessFull);
  if (c.traits().qk_norm) {
    f(s.qk_normed, "q, k normed", dtype, Shape{tokens, (c.heads + c.kv_heads) * c.head_dim},
      Kept::UnlessFull);
    f(s.q_rstd, "norm statistics", wide, Shape{tokens * c.heads}, Kept::UnlessFull);
    f(s.k_rstd, "norm statistics", wide, Shape{tokens * c.kv_heads}, Kept::UnlessFull);
  }
  f(s.attended, "attention", dtype, Shape{tokens, c.heads * c.head_dim}, Kept::UnlessFull);
  f(s.log_sum_exp, "attention statistics", wide, Shape{sequences, c.heads, length},
    Kept::UnlessFull);
  f(s.middle, "block middles", dtype, Shape{tokens, hidden}, Kept::UnlessFull);
  if (means) f(s.norm2.mean, "norm statistics", wide, Shape{tokens}, Kept::UnlessFull);
  f(s.norm2.rstd, "norm statistics", wide, Shape{tokens}, Kept::UnlessFull);
  f(s.normed2, "norm outputs", dtype, Shape{tokens, hidden}, Kept::UnlessSelective);
  f(s.up, "mlp", dtype, Shape{tokens, up}, Kept::UnlessFull);
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
                                 std::int64_t sequences, std::int64_t length, Recompute recompute) {
  BlockStash shared;
  for_each_field(
      shared, config, dtype, sequences, length,
      [&](Tensor& field, std::string_view name, DType type, const Shape& shape, Kept kept) {
        if (!dropped(kept, recompute)) return;
        field = arena.allocate(Region::Workspace, fmt::format("recomputed {}", name), type, shape);
      });
  return shared;
}

BlockStash allocate_stash(Arena& arena, const ModelConfig& config, DType dtype,
                          std::int64_t sequences, std::int64_t length, Recompute recompute,
                          const BlockStash& shared) {
  BlockStash stash = shared;
  stash.activation_rebuilt = recompute == Recompute::Selective;
  for_each_field(
      stash, config, dtype, sequences, length,
      [&](Tensor& field, std::string_view name, DType type, const Shape& shape, Kept kept) {
        if (dropped(kept, recompute)) return;  // stays the shared one
        field = arena.allocate(Region::Activations, std::string(name), type, shape);
      });
  return stash;
}

BlockStash resize_stash(BlockStash stash, const ModelConfig& config, std::int64_t sequences,
                        std::int64_t length) {
  for_each_field(stash, config, stash.input.dtype(), sequences, length,
                 [](Tensor& field, std::string_view, DType type, const Shape& shape, Kept) {
                   KINTSUGI_CHECK(shape.elements() <= field.elements(), "a stash of {} holds no {}",
                                  to_string(field.shape()), to_string(shape));
                   field = Tensor(field.data(), type, shape);
                 });
  return stash;
}

BlockWorkspace allocate_workspace(Arena& arena, const ModelConfig& c, DType dtype,
                                  std::int64_t tokens, bool training) {
  const std::int64_t up =
      c.traits().activation == ActivationKind::Swiglu ? 2 * c.ffn_size : c.ffn_size;
  const auto take = [&](const char* name, std::int64_t width) {
    return arena.allocate(Region::Workspace, name, dtype, {tokens, width});
  };
  BlockWorkspace w;
  w.branch = take("branch", c.hidden_size);
  if (!training) return w;
  w.dnormed = take("gradient of norm outputs", c.hidden_size);
  w.dqkv = take("gradient of q, k, v", c.qkv_rows());
  w.dattended = take("gradient of attention", c.heads * c.head_dim);
  w.dup = take("gradient of mlp", up);
  if (c.traits().activation == ActivationKind::Swiglu)
    w.dactivated = take("gradient of mlp activations", c.ffn_size);
  return w;
}

BlockWorkspace resize_workspace(const BlockWorkspace& w, std::int64_t tokens) {
  const auto first = [&](const Tensor& x) { return x ? x.rows(0, tokens) : x; };
  return {first(w.branch),    first(w.dnormed), first(w.dqkv),
          first(w.dattended), first(w.dup),     first(w.dactivated)};
}

}  // namespace kintsugi
