#pragma once

#include <memory>

#include "backend/backend.h"

namespace kintsugi {

// The CPU world: OpenBLAS for matrix products, our own threads and vector loops for everything
// between them. threads = 0 takes every core this process may run on.
std::unique_ptr<Backend> make_cpu_backend(int threads = 0);

// Seconds that all threads together have spent inside BLAS since the last call; counted only while
// switched on. For bench/: the step itself never reads a clock.
void count_blas_time(bool on);
double take_blas_seconds();

}  // namespace kintsugi
