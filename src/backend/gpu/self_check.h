#pragma once

#include <string>

#include "backend/backend.h"
#include "backend/gpu/attention.h"

namespace kintsugi::gpu {

// Computes small matmuls of every form on a backend and compares them with integers. Empty, or what
// is wrong.
std::string wrong_matmul(Backend& backend);

// Computes a small attention, its log-sum-exp and its gradients by the vendor's library, and
// compares them with those of our own kernels.
struct AttentionCheck {
  std::string library = {};  // "AOTriton 0.11"; empty: none is used
  std::string wrong = {};    // what is wrong with it
};
AttentionCheck check_attention(Backend& backend, Attention& attention);

}  // namespace kintsugi::gpu
