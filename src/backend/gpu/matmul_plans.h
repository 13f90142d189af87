#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/gpu/matmul_library.h"
#include "backend/tuning_cache.h"

namespace kintsugi::gpu {

// Everything an algorithm may depend on.
using MatmulKey = std::array<std::int64_t, 24>;

// The matmuls of the vendor's libraries. The first matmul of a new form chooses a library and the
// fastest of its algorithms; later ones only launch it. Algorithms do not depend on the scales.
class MatmulPlans {
 public:
  explicit MatmulPlans(const MatmulSettings& settings);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  // Returns false, without any effect, for a matmul that no library can compute. `unfused` computes
  // the same result by separate calls: if it is given, false also means that it is faster.
  bool run(const Context& context, const MatmulProblem& problem,
           const std::function<void()>& unfused = {});
  std::string name() const;  // "cuBLASLt 120402", "hipBLASLt 1200, rocBLAS 4.2.0"
  std::size_t own_bytes() const { return scratch_.bytes; }

 private:
  struct Plan {
    std::unique_ptr<LibraryMatmul> matmul;
    bool supported = false;
    MatmulAlgorithm algorithm = {};
  };
  using Algorithms = std::vector<MatmulAlgorithm>;

  Plan& plan_for(const Context& context, const MatmulProblem& problem,
                 const std::function<void()>& unfused);
  bool recall(Plan& plan, const MatmulProblem& problem, const std::string& text);
  void choose(Plan& plan, const Context& context, const MatmulProblem& problem,
              const std::function<void()>& unfused);
  void launch(const Context& context, const Plan& plan, const MatmulProblem& problem,
              const MatmulAlgorithm& algorithm, void* c) const;
  MatmulAlgorithm fastest(const Context& context, const Plan& plan, const MatmulProblem& problem,
                          const Algorithms& candidates) const;
  bool worth_fusing(const Context& context, const Plan& plan, const MatmulProblem& problem,
                    const std::function<void()>& unfused) const;

  MatmulSettings settings_;
  std::vector<std::unique_ptr<MatmulLibrary>> libraries_;
  TuningCache cache_;
  MatmulScratch scratch_;
  std::map<MatmulKey, Plan> plans_;
};

}  // namespace kintsugi::gpu
