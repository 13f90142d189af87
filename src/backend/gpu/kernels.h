#pragma once

#include "backend/backend.h"
#include "backend/gpu/common.h"

namespace kintsugi::gpu {

// The launchers of every operation, which GpuBackend calls; the first argument is the context.
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

// c (m, n) = a (m, k) b (n, k)^T for few rows m, as in decoding: the time is that of reading b.
// Returns false, without any effect, for operands that it does not compute: more rows, a GELU,
// fp64, b not transposed, or rows of a and b that do not consist of whole 16-byte words.
bool matmul_few_rows(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                     const MatmulOptions& options);

// Attention by our own kernels: every floating-point type, any head size up to 256, any number of
// queries and keys. Deterministic. The arguments are those of Backend's attention operations.
// 16-bit heads are computed on the matrix units if these are used: see matrix_attention_forward().
enum class MatrixUnits { Use, Avoid };
void flash_forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                   const AttentionOptions& options, MatrixUnits units, Stream stream);
// scratch: flash_backward_scratch_bytes(q) bytes of device memory
void flash_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                    Tensor k, Tensor v, const AttentionOptions& options, MatrixUnits units,
                    void* scratch, Stream stream);
std::size_t flash_backward_scratch_bytes(const Tensor& q);

// Sets out to 0 and lse to -infinity for queries that see no key: document_start (batch, queries)
// is after the query itself. The first query has the position of the first key.
void clear_empty_rows(Tensor out, Tensor lse, Tensor document_start, Stream stream);

}  // namespace kintsugi::gpu
