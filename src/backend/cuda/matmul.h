#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

struct MatmulSettings {
  bool tf32 = false;
  bool tune = true;  // time the candidates of each new shape; false: use cuBLASLt's first proposal
  std::string cache_file;  // stores the chosen algorithms; empty: not stored
  std::string gpu;         // the GPU's name, part of the cache's keys
};

class MatmulPlans;

// Matmuls through cuBLASLt. The first matmul of a new shape chooses an algorithm; later ones only
// launch it.
class Matmul {
 public:
  explicit Matmul(const MatmulSettings& settings);
  ~Matmul();

  // Like Backend::matmul. Algorithms do not depend on the scales.
  void run(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
           const MatmulOptions& options);
  // Like Backend::matmul_fp8.
  void run_fp8(const Context& context, const Tensor& c, const Quantized& a, const Quantized& b,
               const MatmulOptions& options);
  std::size_t own_bytes() const;

 private:
  void run_gelu(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                const MatmulOptions& options);

  std::unique_ptr<MatmulPlans> plans_;
};

}  // namespace kintsugi::cuda
