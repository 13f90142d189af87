#pragma once

#include <memory>

#include "backend/gpu/matmul_library.h"
#include "core/error.h"
#include "core/shared_library.h"

// ROCm's libraries of matmuls. nullptr if one is not installed, with the reason in `why`.
namespace kintsugi::gpu {

// Failure if the library has no such function.
template <class F>
void require(const SharedLibrary& library, F*& function, const char* name) {
  function = library.find<F>(name);
  if (function == nullptr) failure("{} has no function {}", library.name(), name);
}

std::unique_ptr<MatmulLibrary> open_hipblaslt(std::string& why);
std::unique_ptr<MatmulLibrary> open_rocblas(std::string& why);

}  // namespace kintsugi::gpu
