#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/gpu/common.h"
#include "backend/gpu/matmul_library.h"

namespace kintsugi::gpu {

// Matmuls by the vendor's library and by our own kernels.
class Matmul {
 public:
  explicit Matmul(const MatmulSettings& settings);

  // Like Backend::matmul. Algorithms do not depend on the scales.
  void run(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
           const MatmulOptions& options);
  // Like Backend::matmul_fp8.
  void run_fp8(const Context& context, const Tensor& c, const Quantized& a, const Quantized& b,
               const MatmulOptions& options);
  std::size_t own_bytes() const { return library_->own_bytes(); }
  std::string library() const { return library_->name(); }

 private:
  void run_gelu(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                const MatmulOptions& options);

  std::unique_ptr<MatmulLibrary> library_;
};

}  // namespace kintsugi::gpu
