#pragma once

#include <cublasLt.h>

#include <functional>
#include <map>
#include <vector>

#include "backend/gpu/cuda/matmul_plan.h"
#include "backend/tuning_cache.h"

namespace kintsugi::gpu {

inline constexpr std::size_t kMatmulWorkspaceBytes = std::size_t{64} << 20;

// The plan of each matmul so far, with the fastest algorithm that was found for it.
class MatmulPlans final : public MatmulLibrary {
 public:
  explicit MatmulPlans(const MatmulSettings& settings);
  ~MatmulPlans() override;
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  bool run(const Context& context, const MatmulProblem& problem,
           const std::function<void()>& unfused) override;
  std::string name() const override;
  std::size_t own_bytes() const override { return kMatmulWorkspaceBytes; }

 private:
  MatmulPlan& plan_for(const Context& context, const MatmulProblem& problem,
                       const std::function<void()>& unfused);
  using Algorithms = std::vector<cublasLtMatmulAlgo_t>;
  Algorithms propose(const MatmulPlan& plan, const MatmulProblem& problem) const;
  bool usable(const MatmulPlan& plan, const cublasLtMatmulAlgo_t& algorithm) const;
  cublasStatus_t launch(const Context& context, const MatmulPlan& plan,
                        const MatmulProblem& problem, const cublasLtMatmulAlgo_t& algorithm,
                        void* c) const;
  cublasLtMatmulAlgo_t fastest(const Context& context, const MatmulPlan& plan,
                               const MatmulProblem& problem, const Algorithms& candidates) const;
  bool worth_fusing(const Context& context, const MatmulPlan& plan, const MatmulProblem& problem,
                    const std::function<void()>& unfused) const;

  MatmulSettings settings_;
  TuningCache cache_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<MatmulKey, MatmulPlan> plans_;
};

}  // namespace kintsugi::gpu
