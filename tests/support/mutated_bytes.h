#pragma once

#include <random>
#include <string>
#include <string_view>

namespace kintsugi {

// Damages the bytes of a file: flipped bits, missing and repeated ranges, absurd lengths and
// numbers, deep nesting, ranges of `other`.
std::string mutated_bytes(std::string bytes, std::string_view other, std::mt19937_64& random);

}  // namespace kintsugi
