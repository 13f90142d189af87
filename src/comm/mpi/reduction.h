#pragma once

#include <mpi.h>

#include "comm/communicator.h"

namespace kintsugi {

// MPI datatype and operation. MPI's predefined ones where possible, so that networks with
// in-network reduction can use it. Our own for 16-bit floats, which are added in float and rounded
// after each addition, and for the maximum of floats, which must be NaN if any value is.
struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
};
// Call it in the thread that makes the MPI calls, after MPI_Init.
Reduction mpi_reduction(DType dtype, ReduceOp op);

}  // namespace kintsugi
