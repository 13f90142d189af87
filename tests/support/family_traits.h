#pragma once

#include "model/spec.h"

namespace kintsugi {

// The properties of the families, stated again independently for formulas that check the program.
struct FamilyTraits {
  NormKind norm = NormKind::Rms;
  PositionKind positions = PositionKind::Rope;
  ActivationKind activation = ActivationKind::Swiglu;
  bool qkv_bias = false;
  bool linear_bias = false;
  bool qk_norm = false;  // per head
  bool embedding_norm = false;
};

inline FamilyTraits traits_of(Family family) {
  const FamilyTraits gpt2{.norm = NormKind::Layer,
                          .positions = PositionKind::Learned,
                          .activation = ActivationKind::Gelu,
                          .qkv_bias = true,
                          .linear_bias = true};
  switch (family) {
    case Family::Gpt2:
      return gpt2;
    case Family::Qwen2:
      return {.qkv_bias = true};
    case Family::Qwen3:
      return {.qk_norm = true};
    case Family::Bloom: {
      FamilyTraits bloom = gpt2;
      bloom.positions = PositionKind::Alibi;
      bloom.embedding_norm = true;
      return bloom;
    }
    default:
      return {};
  }
}

}  // namespace kintsugi
