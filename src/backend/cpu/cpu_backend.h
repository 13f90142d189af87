#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace kintsugi {

// The CPU backend: OpenBLAS for matmuls, our own threads and vector loops for everything else.
// threads = 0 uses every core that this process may run on.
std::unique_ptr<Backend> make_cpu_backend(int threads = 0);
std::string cpu_library_versions();  // "OpenBLAS 0.3.21"

// Seconds that all threads together have spent inside BLAS since the last call. Counted only while
// switched on, for bench/: a training step never reads the clock.
void count_blas_time(bool on);
double take_blas_seconds();

}  // namespace kintsugi
