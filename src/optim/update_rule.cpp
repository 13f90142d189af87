#include "optim/update_rule.h"

#include <algorithm>

#include "core/philox.h"

namespace kintsugi {

UpdateRules update_rules(const OptimizerSettings& settings) {
  if (settings.rules) return settings.rules;
  const auto adamw = make_adamw(settings);
  if (settings.kind == OptimizerKind::AdamW)
    return [adamw](const Parameter&) -> const UpdateRule& { return *adamw; };
  return [adamw, muon = make_muon(settings)](const Parameter& parameter) -> const UpdateRule& {
    if (parameter.hidden) return *muon;
    return *adamw;
  };
}

std::vector<const UpdateRule*> rules_of(const ParameterSet& set, const UpdateRules& rules) {
  std::vector<const UpdateRule*> found;
  for (const Parameter& parameter : set.parameters()) {
    if (!parameter.trained) continue;
    const UpdateRule* const rule = &rules(parameter);
    if (std::ranges::find(found, rule) == found.end()) found.push_back(rule);
  }
  return found;
}

std::uint64_t rounding_key(const OptimizerSettings& settings, std::int64_t step) {
  if (!settings.stochastic_rounding) return 0;
  return derive_key(settings.seed, 0x50FF, static_cast<std::uint64_t>(step)) | 1;
}

DType moments_dtype(const OptimizerSettings& settings, DType precision) {
  return accumulator_of(precision) == DType::F64 ? DType::F64 : settings.moments;
}

}  // namespace kintsugi
