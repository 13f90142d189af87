#include "backend/gpu/attention.h"

#include "backend/attention_mask.h"
#include "backend/gpu/fused_attention.h"
#include "backend/gpu/kernels.h"
#include "core/log.h"

namespace kintsugi::gpu {
namespace {

MatrixUnits matrix_units(AttentionChoice choice) {
  return choice == AttentionChoice::Scalar ? MatrixUnits::Avoid : MatrixUnits::Use;
}

}  // namespace

struct Attention::State {
  FusedAttention fused;
  Workspace* shared = nullptr;
  std::unique_ptr<Workspace> own;  // if none is shared; allocated by the first call that needs it

  void* scratch(std::size_t bytes, Stream stream) {
    if (bytes == 0) return nullptr;
    if (shared) return shared->get(bytes, stream);
    if (!own) {
      KINTSUGI_CHECK(
          !is_capturing(stream),
          "attention needs scratch memory while a graph is captured: run the step once before");
      own = std::make_unique<Workspace>(bytes);
    }
    return own->get(bytes, stream);
  }
};

Attention::Attention() : state_(std::make_unique<State>()) {}
Attention::Attention(Workspace& scratch) : Attention() { state_->shared = &scratch; }
Attention::~Attention() = default;

// Training in 16 bits is slower without the library's fused kernels: tells the user why.
void Attention::warn_if_slow(const Tensor& q) {
  constexpr std::int64_t kNoticeable = 1024;  // fewer tokens are fast enough anyway
  if (warned_ || own_kernels() || size_of(q.dtype()) != 2 ||
      q.extent(0) * q.extent(1) < kNoticeable)
    return;
  warned_ = true;
  log_warning("attention runs on the portable kernel, which is slower: {}",
              state_->fused.last_reason());
}

void Attention::forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                        const AttentionOptions& options, Stream stream) {
  if (q.elements() == 0) return;
  if (!own_kernels()) {
    const AttentionCall call{out, lse, q, k, v, {}, {}, {}, {}, options, deterministic_};
    if (const AttentionPlan* plan = state_->fused.forward_plan(call, stream)) {
      state_->fused.run_forward(*plan, call, state_->scratch(scratch_bytes(*plan), stream), stream);
      // For a query that sees no key, cuDNN returns the mean of all values.
      if (options.document_start) {
        const AttentionMask mask(options, q.extent(1), k.extent(1));
        if (mask.end(0) == mask.keys)
          clear_empty_block_rows(out, lse, options.document_start, mask.keys, stream);
        else
          clear_empty_rows(out, lse, options.document_start, stream);
      }
      last_kernel_ = description(*plan);
      return;
    }
    if (choice_ == AttentionChoice::Fused) failure("{}", state_->fused.last_reason());
  }
  warn_if_slow(q);
  flash_forward(out, lse, q, k, v, options, matrix_units(choice_), stream);
  last_kernel_ = "portable";
}

void Attention::backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                         Tensor q, Tensor k, Tensor v, const AttentionOptions& options,
                         Stream stream) {
  if (q.elements() == 0 && k.elements() == 0) return;
  if (!own_kernels()) {
    const AttentionCall call{out, lse, q, k, v, dq, dk, dv, dout, options, deterministic_};
    if (const AttentionPlan* plan = state_->fused.backward_plan(call, stream)) {
      state_->fused.run_backward(*plan, call, state_->scratch(scratch_bytes(*plan), stream),
                                 stream);
      last_kernel_ = description(*plan);
      return;
    }
    if (choice_ == AttentionChoice::Fused) failure("{}", state_->fused.last_reason());
  }
  warn_if_slow(q);
  void* row_sum = state_->scratch(flash_backward_scratch_bytes(q), stream);
  flash_backward(dq, dk, dv, dout, out, lse, q, k, v, options, matrix_units(choice_), row_sum,
                 stream);
  last_kernel_ = "portable";
}

std::size_t Attention::own_bytes() const {
  return state_->fused.own_bytes() + (state_->own ? state_->own->bytes() : 0);
}

const std::vector<std::string>& Attention::refusals() const { return state_->fused.refusals(); }

void attention_forward(const Context& context, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                       const AttentionOptions& options) {
  context.attention.forward(out, lse, q, k, v, options, context.stream);
}
void attention_backward(const Context& context, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                        Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                        const AttentionOptions& options) {
  context.attention.backward(dq, dk, dv, dout, out, lse, q, k, v, options, context.stream);
}

}  // namespace kintsugi::gpu
