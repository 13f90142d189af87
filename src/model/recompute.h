#pragma once

#include <cstdint>
#include <string_view>

namespace kintsugi {

// What a block drops after its forward and recomputes in its backward. (Attention scores are never
// saved.) Selective: norm outputs and MLP activations, which need no matmul. Full: everything but
// the block's input.
enum class Recompute : std::uint8_t { None, Selective, Full };
std::string_view to_string(Recompute recompute);
Recompute parse_recompute(std::string_view text);

}  // namespace kintsugi
