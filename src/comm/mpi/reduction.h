#pragma once

#include <mpi.h>

#include "comm/communicator.h"

namespace kintsugi {

// MPI's names for elements and for what is done to two of them. MPI's own where it has them, so
// that a network that sums by itself can; ours for 16-bit floats, which are added in float and
// rounded after each addition, and for the maximum of floats, which is NaN where any of them is.
struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
};
// In the thread that makes MPI's calls, after MPI_Init.
Reduction mpi_reduction(DType dtype, ReduceOp op);

}  // namespace kintsugi
