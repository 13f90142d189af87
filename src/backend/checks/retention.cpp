#include "backend/retention.h"

#include "backend/checks/checks.h"

namespace kintsugi {

void Checks::decays(const RetentionOptions& options, std::int64_t heads) const {
  list(options.decays, heads, DType::F32);
  KINTSUGI_CHECK(options.chunk >= 0, "{}: chunks of {} tokens", operation_, options.chunk);
}

// x are keys or queries, y values or the gradient of the output.
RetentionSizes Checks::retention(const Tensor& x, const Tensor& y,
                                 const RetentionOptions& options) const {
  ranked(x, 4, 4);
  shaped(y, {x.extent(0), x.extent(1), x.extent(2), y.extent(3)}, x.dtype());
  decays(options, x.extent(2));
  return retention_sizes(x, y, options);
}

void Checks::state(const Tensor& state, const RetentionSizes& n, DType dtype) const {
  dense(state, {n.batch, n.heads, n.k_dim, n.v_dim}, accumulator_of(dtype));
}

void Checks::workspace(const Tensor& memory, const RetentionSizes& n, DType dtype,
                       bool backward) const {
  const std::size_t bytes = retention_workspace_bytes(dtype, n, backward);
  KINTSUGI_CHECK(memory && memory.contiguous() && memory.bytes() >= bytes,
                 "{} needs a workspace of {} bytes", operation_, bytes);
}

void Checks::retention_forward(Tensor out, Tensor q, Tensor k, Tensor v, Tensor state,
                               Tensor workspace, const RetentionOptions& options) const {
  const RetentionSizes n = retention(k, v, options);
  like(k, q);
  like(v, out);
  if (state) this->state(state, n, v.dtype());
  if (n.length > 1) this->workspace(workspace, n, v.dtype());
}

void Checks::retention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor q, Tensor k,
                                Tensor v, Tensor state, Tensor dstate, Tensor workspace,
                                const RetentionOptions& options) const {
  const RetentionSizes n = retention(k, v, options);
  like(k, q, dq, dk);
  like(v, dv, dout);
  if (state) this->state(state, n, v.dtype());
  if (dstate) this->state(dstate, n, v.dtype());
  this->workspace(workspace, n, v.dtype(), true);
}

void Checks::retention_state(Tensor state, Tensor k, Tensor v, Tensor workspace,
                             const RetentionOptions& options) const {
  const RetentionSizes n = retention(k, v, options);
  this->state(state, n, v.dtype());
  if (n.length > 1) this->workspace(workspace, n, v.dtype());
}

void Checks::retention_state_backward(Tensor dstate, Tensor q, Tensor dout, Tensor workspace,
                                      const RetentionOptions& options) const {
  const RetentionSizes n = retention(q, dout, options);
  state(dstate, n, dout.dtype());
  this->workspace(workspace, n, dout.dtype());
}

void Checks::retention_decay(Tensor state, std::int64_t, const RetentionOptions& options) const {
  ranked(state, 4, 4);
  accumulator(state);
  contiguous(state);
  decays(options, state.extent(1));
}

void Checks::retention_step(Tensor out, Tensor states, Tensor q, Tensor k, Tensor v, Tensor slots,
                            Tensor positions, const RetentionOptions& options) const {
  ranked(q, 3, 3);
  const std::int64_t tokens = q.extent(0), heads = q.extent(1), v_dim = v.extent(2);
  like(q, k);
  shaped(v, {tokens, heads, v_dim}, q.dtype());
  like(v, out);
  dense(states, {states.extent(0), heads, q.extent(2), v_dim}, accumulator_of(q.dtype()));
  list(slots, tokens, DType::I32);
  list(positions, tokens, DType::I32);
  decays(options, heads);
}

}  // namespace kintsugi
