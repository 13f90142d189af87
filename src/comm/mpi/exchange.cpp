#include "comm/mpi/exchange.h"

#include <algorithm>
#include <array>

#include "comm/reduce.h"

namespace kintsugi {
namespace {

// MPI counts in int, so large messages are split.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

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

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  failure("{} failed: {}", call, text);
}

bool Exchange::advance() {
  for (;;) {
    int arrived = 1;
    if (!requests_.empty())
      check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &arrived,
                            MPI_STATUSES_IGNORE),
                "MPI_Testall");
    if (!arrived) return false;
    requests_.clear();
    if (!next_round()) return true;
  }
}

void Exchange::send(const void* data, std::int64_t bytes, int to) {
  bytes_sent_ += bytes;
  for (std::int64_t begin = 0; begin < bytes; begin += kMaxBytes)
    check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + begin,
                        static_cast<int>(std::min(kMaxBytes, bytes - begin)), MPI_BYTE, to, tag_,
                        group_.comm, &requests_.emplace_back()),
              "MPI_Isend");
}

void Exchange::receive(void* data, std::int64_t bytes, int from) {
  for (std::int64_t begin = 0; begin < bytes; begin += kMaxBytes)
    check_mpi(MPI_Irecv(static_cast<std::byte*>(data) + begin,
                        static_cast<int>(std::min(kMaxBytes, bytes - begin)), MPI_BYTE, from, tag_,
                        group_.comm, &requests_.emplace_back()),
              "MPI_Irecv");
}

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
