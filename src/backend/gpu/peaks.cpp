#include "backend/gpu/peaks.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace kintsugi::gpu {
namespace {

struct Sheet {
  std::array<std::string_view, 2> words;  // the GPU's name contains all of them
  // TFLOP/s dense: bf16 and fp16, TF32, fp32, fp64 (matrix units), fp8 (0: it has none)
  double half, tf32, single, wide, fp8;
};

// From the data sheets of NVIDIA and AMD; rates with sparsity are halved. More specific names come
// first.
constexpr Sheet kSheets[] = {
    {{"H200", "NVL"}, 835.5, 417.5, 60, 60, 1670.5},
    {{"H200", ""}, 989.4, 494.7, 66.9, 66.9, 1979},
    {{"GH200", ""}, 989.4, 494.7, 66.9, 66.9, 1979},
    {{"H100", "PCIe"}, 756, 378, 51.2, 51.2, 1513},
    {{"H100", "NVL"}, 835.5, 417.5, 60, 60, 1670.5},
    {{"H100", ""}, 989.4, 494.7, 66.9, 66.9, 1979},
    {{"A100", ""}, 312, 156, 19.5, 19.5, 0},
    {{"B200", ""}, 2250, 1125, 75, 37, 4500},
    {{"GB200", ""}, 2500, 1250, 80, 40, 5000},
    {{"L40S", ""}, 362, 183, 91.6, 1.4, 733},
    {{"MI250X", ""}, 191.5, 47.9, 47.9, 47.9, 0},  // of one of its two GCDs; it has no TF32
    {{"MI300X", ""}, 1307.4, 653.7, 163.4, 163.4, 2614.9},
    {{"MI300A", ""}, 980.6, 490.3, 122.6, 122.6, 1961.2},
    {{"RTX", "4090"}, 165.2, 82.6, 82.6, 1.3, 330.3},  // with sums in fp32
};

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ' ' || c == '-')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

}  // namespace

std::optional<double> known_peak_flops(std::string_view gpu, DType dtype, bool tf32) {
  const std::vector<std::string> name = words_of(gpu);
  // Slower variants that have the name of another GPU.
  for (const std::string_view variant : {"Laptop", "D"})
    if (std::ranges::find(name, variant) != name.end()) return std::nullopt;
  for (const Sheet& sheet : kSheets) {
    const bool matches = std::ranges::all_of(sheet.words, [&](std::string_view word) {
      return word.empty() || std::ranges::find(name, word) != name.end();
    });
    if (!matches) continue;
    switch (dtype) {
      case DType::BF16:
      case DType::F16:
        return sheet.half * 1e12;
      case DType::F32:
        return (tf32 ? sheet.tf32 : sheet.single) * 1e12;
      case DType::F64:
        return sheet.wide * 1e12;
      case DType::F8:
        return sheet.fp8 > 0 ? std::optional(sheet.fp8 * 1e12) : std::nullopt;
      default:
        return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace kintsugi::gpu
