#include "optim/update_rule.h"

#include <algorithm>
#include <memory>

#include "optim/adamw.h"

namespace kintsugi {

UpdateRules update_rules(const OptimizerSettings& settings) {
  if (settings.rules) return settings.rules;
  return [adamw = std::make_shared<const AdamW>(settings)](
             const Parameter& parameter) -> const UpdateRule& {
    switch (parameter.rule) {
      case UpdateRuleKind::AdamW:
        return *adamw;
    }
    failure("{} has no update rule", parameter.name);
  };
}

std::vector<const UpdateRule*> rules_of(const ParameterSet& set, const UpdateRules& rules) {
  std::vector<const UpdateRule*> found;
  for (const Parameter& parameter : set.parameters()) {
    const UpdateRule* const rule = &rules(parameter);
    if (std::find(found.begin(), found.end(), rule) == found.end()) found.push_back(rule);
  }
  return found;
}

}  // namespace kintsugi
