#pragma once

#include <string>

#include "backend/backend.h"

namespace kintsugi::gpu {

// Computes small matmuls of every form on a backend and compares them with integers. Empty, or what
// is wrong.
std::string wrong_matmul(Backend& backend);

}  // namespace kintsugi::gpu
