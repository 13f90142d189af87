#pragma once

#include <string>

#include "backend/gpu/runtime.h"

namespace kintsugi::gpu {

// Why a GPU or the vendor's matmul library cannot multiply fp8 matrices with these scales, in a few
// words; empty: they can.
std::string why_no_fp8(const Device& device, const Traits& traits, bool one_scale);

}  // namespace kintsugi::gpu
