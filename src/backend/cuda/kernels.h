#pragma once

#include "backend/backend.h"
#include "backend/cuda/cuda_common.h"

namespace kintsugi::cuda {

// Every operation, with the context it runs in first: what CudaBackend calls. One file per layer
// kind has the kernels and their launchers.
#define KINTSUGI_UNPACKED(...) __VA_ARGS__
#define KINTSUGI_OPERATION(name, parameters, ...) \
  void name(const Context& context, KINTSUGI_UNPACKED parameters);
#include "backend/operations.def"
#undef KINTSUGI_UNPACKED

void fill(const Context& context, Tensor x, double value);

// c = product (accumulator precision) + bias [+ residual]: for products whose library call cannot
// add a bias.
void finish_product(const Context& context, Tensor c, Tensor product, Tensor bias, Tensor residual);

}  // namespace kintsugi::cuda
