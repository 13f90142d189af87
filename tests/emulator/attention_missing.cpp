// A platform without a library of fused attention: our own kernels compute all of it.
#include "backend/gpu/fused_attention.h"

namespace kintsugi::gpu {

struct AttentionPlan {
  std::string description;
};
struct FusedAttention::State {
  std::string reason = "there is no fused attention for this GPU yet";
  std::vector<std::string> refusals;
};

std::size_t scratch_bytes(const AttentionPlan&) { return 0; }
const std::string& description(const AttentionPlan& plan) { return plan.description; }
FusedAttention::FusedAttention() : state_(std::make_unique<State>()) {}
FusedAttention::~FusedAttention() = default;
const AttentionPlan* FusedAttention::forward_plan(const AttentionCall&, Stream) { return nullptr; }
const AttentionPlan* FusedAttention::backward_plan(const AttentionCall&, Stream) { return nullptr; }
void FusedAttention::run_forward(const AttentionPlan&, const AttentionCall&, void*, Stream) {}
void FusedAttention::run_backward(const AttentionPlan&, const AttentionCall&, void*, Stream) {}
std::size_t FusedAttention::own_bytes() const { return 0; }
const std::string& FusedAttention::last_reason() const { return state_->reason; }
const std::vector<std::string>& FusedAttention::refusals() const { return state_->refusals; }

}  // namespace kintsugi::gpu
