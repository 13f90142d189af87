#pragma once

#include <memory>

#include "backend/gpu/matmul_library.h"

// ROCm's libraries of matmuls. nullptr if one is not installed, with the reason in `why`.
namespace kintsugi::gpu {

std::unique_ptr<MatmulLibrary> open_hipblaslt(std::string& why);
std::unique_ptr<MatmulLibrary> open_rocblas(std::string& why);

}  // namespace kintsugi::gpu
