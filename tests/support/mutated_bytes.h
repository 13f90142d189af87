#pragma once

#include <random>
#include <string>
#include <string_view>

namespace kintsugi {

// The bytes of a file after a few accidents or attacks: flipped bits, missing and doubled parts,
// absurd lengths and numbers, deep nesting, parts of `other`.
std::string mutated_bytes(std::string bytes, std::string_view other, std::mt19937_64& random);

}  // namespace kintsugi
