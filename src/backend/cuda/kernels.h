#pragma once

#include "backend/backend.h"
#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

// The launchers of every operation, which CudaBackend calls; the first argument is the context.
// There is one file per kind of layer, with its kernels and launchers.
#define KINTSUGI_UNPACKED(...) __VA_ARGS__
#define KINTSUGI_OPERATION(name, parameters, ...) \
  void name(const Context& context, KINTSUGI_UNPACKED parameters);
#include "backend/operations.def"
#undef KINTSUGI_UNPACKED

void fill(const Context& context, Tensor x, double value);

// c = x (accumulator precision) + bias [+ residual]: for matmuls whose bias cuBLASLt cannot fuse.
void add_bias(const Context& context, Tensor c, Tensor x, Tensor bias, Tensor residual);

// matmul_fp8 in plain arithmetic, an element per thread: for results in types that cuBLASLt does
// not write.
void matmul_fp8_each(const Context& context, Tensor c, Quantized a, Quantized b,
                     const MatmulOptions& options);

}  // namespace kintsugi::cuda
