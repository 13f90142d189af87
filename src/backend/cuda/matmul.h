#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

struct MatmulSettings {
  bool tf32 = false;
  bool tune =
      true;  // time the candidates of each new shape; otherwise take the library's first proposal
  std::string cache_file;  // where what was found is kept; empty: nowhere
  std::string gpu;         // its name, part of the cache's keys
};

// Matrix products through cuBLASLt. The first product of a new shape chooses an algorithm; later
// ones only launch.
class Matmul {
 public:
  explicit Matmul(const MatmulSettings& settings);
  ~Matmul();

  // As Backend::matmul; operands of three dimensions are as many matmuls at once, then without
  // bias, residual and GELU.
  void run(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
           const MatmulOptions& options);
  std::size_t own_bytes() const;

 private:
  void run_gelu(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                const MatmulOptions& options);

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kintsugi::cuda
