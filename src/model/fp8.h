#pragma once

#include <string>
#include <vector>

#include "model/spec.h"
#include "tensor/tensor.h"

namespace kintsugi {

// Marks the matmuls of the blocks that Fp8Config runs in fp8.
void add_fp8(ModelSpec& model, const Fp8Config& fp8);

// Throws UserError if a site of the filter does not exist, or if no matmul is left.
void check_fp8(const ModelConfig& config);

// The matmuls of a layer that are marked: "mlp.down".
std::vector<std::string> fp8_sites(LayerSpec layer);
// The matmuls that are marked, in the order of Fp8Spec::site: "layers.3.mlp.down".
std::vector<std::string> fp8_sites(const ModelSpec& model);

// Whether fp8 matmuls can take sequences of this length on so many context ranks.
inline bool fits_fp8(std::int64_t length, int context) {
  return length % (kFp8Multiple * context) == 0;
}

// The sites that are in fp8 on `tensor` tensor ranks, and those whose sizes are no multiples of
// kFp8Multiple.
struct Fp8Use {
  std::vector<std::string> sites, unaligned;
};
Fp8Use fp8_use(const ModelConfig& config, int tensor);
// One line: what runs in fp8 on `tensor` tensor ranks and what does not: "fp8, per-row scales: …".
std::string fp8_summary(const ModelConfig& config, int tensor);

}  // namespace kintsugi
