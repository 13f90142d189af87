// Replaces attention_cudnn.cpp, attention_graph.cpp and cudnn_plan.cpp in a build without cuDNN.
#include "backend/cuda/attention_cudnn.h"

namespace kintsugi::cuda {

struct CudnnPlan {
  std::string description;
};

std::size_t scratch_bytes(const CudnnPlan&) { return 0; }
const std::string& description(const CudnnPlan& plan) { return plan.description; }

struct CudnnAttention::State {
  std::string reason = "this binary was built without cuDNN";
  std::vector<std::string> refusals = {reason};
};

CudnnAttention::CudnnAttention() : state_(std::make_unique<State>()) {}
CudnnAttention::~CudnnAttention() = default;
const CudnnPlan* CudnnAttention::forward_plan(const CudnnCall&, cudaStream_t) { return nullptr; }
const CudnnPlan* CudnnAttention::backward_plan(const CudnnCall&, cudaStream_t) { return nullptr; }
void CudnnAttention::run_forward(const CudnnPlan&, const CudnnCall&, void*, cudaStream_t) {}
void CudnnAttention::run_backward(const CudnnPlan&, const CudnnCall&, void*, cudaStream_t) {}
std::size_t CudnnAttention::own_bytes() const { return 0; }
const std::string& CudnnAttention::last_reason() const { return state_->reason; }
const std::vector<std::string>& CudnnAttention::refusals() const { return state_->refusals; }

}  // namespace kintsugi::cuda
