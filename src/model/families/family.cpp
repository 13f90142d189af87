#include "model/families/family.h"

#include "core/error.h"

namespace kintsugi {

std::span<const FamilyInfo* const> all_families() {
  static constexpr std::array families = {&kGpt2,     &kLlama, &kQwen2,   &kQwen3,     &kBloom,
                                          &kOlmo2,    &kOlmo3, &kRetnet,  &kMixtral,   &kOlmoe,
                                          &kQwen3Moe, &kDots1, &kGlm4Moe, &kDeepseekV3};
  return families;
}

const FamilyInfo& family_info(Family family) {
  for (const FamilyInfo* info : all_families())
    if (info->family == family) return *info;
  failure("family {} has no description", static_cast<int>(family));
}

}  // namespace kintsugi
