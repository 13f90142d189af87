#pragma once

#include <string>

#include "plan/footprint.h"
#include "plan/search.h"

namespace kintsugi {

std::string best_table(const SearchResult& result, const Planner& planner, double tokens);
std::string misses_table(const SearchResult& result);
std::string explained(Planner& planner, const Evaluation& evaluation, double tokens);
std::string search_json(const SearchResult& result, const Planner& planner, double tokens);
// The configuration that `kintsugi train` runs.
std::string training_yaml(const Planner& planner, const Evaluation& evaluation,
                          const std::string& model, const std::string& data, double tokens);

}  // namespace kintsugi
