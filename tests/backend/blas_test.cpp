// The advice about OpenBLAS's kernels.
#include "backend/cpu/blas.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kintsugi {
namespace {

TEST(BlasKernels, AdvisesWhereAProcessorIsNotKnown) {
  EXPECT_EQ(faster_blas_core("Prescott", true, true), "SkylakeX");
  EXPECT_EQ(faster_blas_core("Prescott", true, false), "Haswell");
  EXPECT_EQ(faster_blas_core("Prescott", false, false), "") << "a processor without AVX2";
  EXPECT_EQ(faster_blas_core("Haswell", true, true), "");
  EXPECT_EQ(faster_blas_core("Cooperlake", true, true), "");
  // What was chosen is not questioned.
  setenv("OPENBLAS_CORETYPE", "Prescott", 1);
  EXPECT_EQ(faster_blas_core(), "");
  unsetenv("OPENBLAS_CORETYPE");
}

}  // namespace
}  // namespace kintsugi
