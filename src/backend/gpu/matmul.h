#pragma once

#include <cstddef>
#include <string>

#include "backend/backend.h"
#include "backend/gpu/common.h"
#include "backend/gpu/matmul_plans.h"

namespace kintsugi::gpu {

// Matmuls by the vendor's library and by our own kernels.
class Matmul {
 public:
  explicit Matmul(const MatmulSettings& settings) : plans_(settings) {}

  // Like Backend::matmul. Algorithms do not depend on the scales.
  void run(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
           const MatmulOptions& options);
  // Like Backend::matmul_fp8.
  void run_fp8(const Context& context, const Tensor& c, const Quantized& a, const Quantized& b,
               const MatmulOptions& options);
  std::size_t own_bytes() const { return plans_.own_bytes(); }
  std::string library() const { return plans_.name(); }

 private:
  void run_gelu(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                const MatmulOptions& options);
  // The libraries' fast kernels take whole 16-byte words: of 50,257 columns, terms, or rows that
  // are columns of a, all but the last go through them. Returns false, without any effect, for other matmuls.
  bool run_whole_words(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                       const MatmulOptions& options);

  MatmulPlans plans_;
};

}  // namespace kintsugi::gpu
