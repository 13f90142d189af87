#pragma once

#include <string>

#include "plan/costs/footprint.h"
#include "plan/search/search.h"

namespace kintsugi {

std::string best_table(const SearchResult& result, const Planner& planner, double tokens);
std::string misses_table(const SearchResult& result);
std::string explained(Planner& planner, const Evaluation& evaluation, double tokens);
// The pipeline of a layout with one, as that of `explained`.
std::string pipeline_svg(const PlanJob& job, const Layout& layout);

struct SearchAsked {
  std::string model, rank_by;
  int gpus = 0;
  int explain = 0;  // 0: none
};
std::string search_json(const SearchResult& result, Planner& planner, const SearchAsked& asked,
                        double tokens);

// The configuration that `kintsugi train` runs. What is empty becomes a placeholder that says so.
struct TrainingInputs {
  std::string model, data, tokenizer;
};
std::string training_yaml(const Planner& planner, const Evaluation& evaluation,
                          const TrainingInputs& inputs, double tokens);

// "1.2 MWh in GPUs, 1.5 MWh in nodes, 1.8 MWh with the facility; 0.70 t CO2e", or what is known of
// it and what is missing.
std::string energy_in_words(const RunEnergy& energy, const Machine& machine);

// Figures of a run in units that leave no 0.0: days or hours, MWh or kWh, tonnes or kg.
std::string in_days(double days);
std::string energy(double mwh);
std::string mass(double tonnes);

}  // namespace kintsugi
