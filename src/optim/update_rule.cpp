#include "optim/update_rule.h"

#include <algorithm>
#include <memory>

#include "optim/adamw.h"
#include "optim/muon.h"

namespace kintsugi {

UpdateRules update_rules(const OptimizerSettings& settings) {
  if (settings.rules) return settings.rules;
  const auto adamw = std::make_shared<const AdamW>(settings);
  if (settings.kind == OptimizerKind::AdamW)
    return [adamw](const Parameter&) -> const UpdateRule& { return *adamw; };
  return [adamw, muon = std::make_shared<const Muon>(settings)](
             const Parameter& parameter) -> const UpdateRule& {
    if (parameter.hidden) return *muon;
    return *adamw;
  };
}

std::vector<const UpdateRule*> rules_of(const ParameterSet& set, const UpdateRules& rules) {
  std::vector<const UpdateRule*> found;
  for (const Parameter& parameter : set.parameters()) {
    if (!parameter.trained) continue;
    const UpdateRule* const rule = &rules(parameter);
    if (std::find(found.begin(), found.end(), rule) == found.end()) found.push_back(rule);
  }
  return found;
}

DType moments_dtype(const OptimizerSettings& settings, DType precision) {
  return accumulator_of(precision) == DType::F64 ? DType::F64 : settings.moments;
}

}  // namespace kintsugi
