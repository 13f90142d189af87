#pragma once

#include "backend/operation_options.h"

namespace kintsugi {

// What an operation demands of its operands, as operations.def states it: ranks, extents, types,
// strides and the values of options. One function per operation; it fails with a message such as
// "rope: an operand is fp32 [4], not int32 with 8 adjacent elements". Each calls rules that
// operations have in common.
class Checks {
 public:
  explicit Checks(const char* operation) : operation_(operation) {}

#define KINTSUGI_OPERATION(name, parameters, ...) void name parameters const;
#include "backend/operations.def"

 private:
  // ---- of any operand
  void number(const Tensor& x) const;                       // a floating-point type, not fp8
  void accumulator(const Tensor& x) const;                  // fp32 or fp64
  void ranked(const Tensor& x, int least, int most) const;  // numbers with so many dimensions
  void matrix(const Tensor& x) const { ranked(x, 2, 2); }
  void contiguous(const Tensor& x) const;
  void shaped(const Tensor& x, const Shape& shape, DType dtype) const;
  void dense(const Tensor& x, const Shape& shape, DType dtype) const;    // and contiguous
  void list(const Tensor& x, std::int64_t elements, DType dtype) const;  // adjacent, any shape
  // Operands with the shape and type of x.
  template <class... Operands>
  void like(const Tensor& x, const Operands&... operands) const {
    (shaped(operands, x.shape(), x.dtype()), ...);
  }
  // For each row of x a number in accumulator precision.
  template <class... Operands>
  void statistics(const Tensor& x, const Operands&... operands) const {
    const std::int64_t rows = x.rank() == 3 ? x.extent(0) * x.extent(1) : x.extent(0);
    (list(operands, rows, accumulator_of(x.dtype())), ...);
  }
  void found(const Maxima& maxima, const Tensor& x) const;  // empty ones fit any x
  [[noreturn]] void wrong(const Tensor& x, const std::string& expected) const;

  // ---- of the operations of a subject
  void start(const Tensor& c, const MatmulOptions& options) const;
  void activation(const Tensor& c, const MatmulOptions& options) const;
  void fp8(const Quantized& q, std::int64_t rows, std::int64_t columns) const;
  void stack(const Tensor& x) const;

  void norm(const Tensor& y, const Tensor& x, const Tensor& rstd) const;
  void weight(const Tensor& x, const Tensor& weight) const;
  void weight_gradient(const Tensor& x, const Tensor& gradient) const;

  void attention(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                 const Tensor& v, const AttentionOptions& options) const;
  void heads(std::int64_t heads, std::int64_t kv_heads, const Tensor& slopes) const;
  void rotation(const Tensor& table, const Tensor& positions, std::int64_t tokens, std::int64_t dim,
                DType dtype) const;

  RetentionSizes retention(const Tensor& x, const Tensor& y, const RetentionOptions& options) const;
  void decays(const RetentionOptions& options, std::int64_t heads) const;
  void state(const Tensor& state, const RetentionSizes& sizes, DType dtype) const;
  void workspace(const Tensor& memory, const RetentionSizes& sizes, DType dtype,
                 bool backward = false) const;

  void choices(const Tensor& ids, const Tensor& logits) const;
  void routing(const Tensor& ids, const Tensor& weights, const Tensor& logits,
               const RouteOptions& options) const;
  void sums_of_sequences(const Tensor& sums, const Tensor& logits) const;
  void expert_rows(const ExpertRows& rows) const;
  void with_rows(const Tensor& x, std::int64_t width, DType dtype, const ExpertRows& rows,
                 bool tokens = false) const;
  void expert_swiglu(const Tensor& out, const Tensor& gate_up, const Tensor& weights,
                     const ExpertRows& rows) const;

  void embedding(const Tensor& x, const Tensor& ids, const Tensor& table, DType dtype) const;
  void losses_of(const Tensor& logits, const Tensor& losses, const Tensor& targets,
                 const CrossEntropyOptions& options) const;
  void moment(const Tensor& moment, std::int64_t elements, DType dtype) const;
  void updated(const Tensor& weight, const Tensor& master, const Tensor& gradient_scale) const;

  const char* operation_;
};

}  // namespace kintsugi
