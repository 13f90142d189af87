#include "comm/mpi/reduction.h"

#include <array>

#include "comm/mpi/exchange.h"
#include "comm/reduce.h"

namespace kintsugi {
namespace {

template <DType dtype, ReduceOp op>
void combine(void* in, void* in_and_out, int* count, MPI_Datatype*) {
  const std::array<const void*, 2> parts = {in_and_out, in};
  reduce_parts(in_and_out, parts, *count, dtype, op);
}

template <DType dtype, ReduceOp op>
MPI_Op custom_op() {
  static const MPI_Op made = [] {
    MPI_Op result = MPI_OP_NULL;
    check_mpi(MPI_Op_create(combine<dtype, op>, 1, &result), "MPI_Op_create");
    return result;
  }();
  return made;
}

MPI_Datatype two_bytes() {
  static const MPI_Datatype made = [] {
    MPI_Datatype result = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(2, MPI_BYTE, &result), "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&result), "MPI_Type_commit");
    return result;
  }();
  return made;
}

template <DType dtype>
Reduction custom(MPI_Datatype type, ReduceOp op) {
  return {type, op == ReduceOp::Sum ? custom_op<dtype, ReduceOp::Sum>()
                                    : custom_op<dtype, ReduceOp::Max>()};
}

}  // namespace

Reduction mpi_reduction(DType dtype, ReduceOp op) {
  const bool sum = op == ReduceOp::Sum;
  const MPI_Op builtin = sum ? MPI_SUM : MPI_MAX;
  switch (dtype) {
    case DType::F64:
      return sum ? Reduction{MPI_DOUBLE, MPI_SUM} : custom<DType::F64>(MPI_DOUBLE, op);
    case DType::F32:
      return sum ? Reduction{MPI_FLOAT, MPI_SUM} : custom<DType::F32>(MPI_FLOAT, op);
    case DType::BF16:
      return custom<DType::BF16>(two_bytes(), op);
    case DType::F16:
      return custom<DType::F16>(two_bytes(), op);
    case DType::I64:
      return {MPI_INT64_T, builtin};
    case DType::I32:
      return {MPI_INT32_T, builtin};
    case DType::U8:
      return {MPI_UINT8_T, builtin};
    case DType::F8:
      break;
  }
  failure("no MPI type for {}", to_string(dtype));
}

}  // namespace kintsugi
