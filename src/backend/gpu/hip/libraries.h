#pragma once

#include <memory>
#include <string>

#include "backend/gpu/matmul_library.h"
#include "core/error.h"
#include "core/shared_library.h"

// ROCm's libraries.
namespace kintsugi::gpu {

// Failure if the library has no such function.
template <class F>
void require(const SharedLibrary& library, F*& function, const char* name) {
  function = library.find<F>(name);
  if (function == nullptr) failure("{} has no function {}", library.name(), name);
}

// The files of two runtimes of HIP, if this process has loaded so many: a library of another
// release brings its own one, which knows nothing of our memory.
std::string mixed_runtimes();

// nullptr if it is not installed, with the reason in `why`.
std::unique_ptr<MatmulLibrary> open_hipblaslt(std::string& why);
std::unique_ptr<MatmulLibrary> open_rocblas(std::string& why);

}  // namespace kintsugi::gpu
