#pragma once

#include <optional>
#include <string>

#include "plan/costs/footprint.h"
#include "plan/search/scaling.h"
#include "plan/search/search.h"

namespace kintsugi {

std::string best_table(const SearchResult& result, const Planner& planner, double tokens,
                       RankBy rank_by);
// What ± means in the table of scaling().
std::string scaling_legend(const Machine& machine);
std::string misses_table(const SearchResult& result);
// What the short forms in a table of these layouts mean.
std::string legend(const std::vector<Evaluation>& rows);
// The command that prints. Texts name its own options.
enum class PrintedBy { Plan, DryRun };
// Memory, the parts of a step, and what a run of so many tokens takes.
std::string explained(Planner& planner, const Evaluation& evaluation, double tokens,
                      PrintedBy command = PrintedBy::Plan);
// The same without the memory.
std::string explained_time(const Planner& planner, const Evaluation& evaluation, double tokens,
                           PrintedBy command);
// The pipeline diagram of `explained` as SVG, for a layout with pp > 1.
std::string pipeline_svg(const PlanJob& job, const Layout& layout);

// A line about GPUs that this program cannot use; empty: it can, or that is not known.
std::string undriven_note(const Machine& machine);

struct SearchRequest {
  std::string model, rank_by;
  int gpus = 0;
  int explain = 0;       // 0: none
  bool experts = false;  // the model has some
};
// `simulated`: JSON of kintsugi-simulate, or empty.
std::string search_json(const SearchResult& result, Planner& planner, const SearchRequest& request,
                        double tokens, const std::string& simulated);

std::string scaling_json(const std::vector<ScalingRow>& rows, const Machine& machine,
                         const SearchRequest& request, double tokens);

// "1000 steps, 2.1 days, …": time, energy and cost, and how sure they are, without checkpoints.
std::string footprint_text(const RunFootprint& footprint, const Machine& machine);
// "Failures: a node every 4 h …": what they cost a run.
std::string failures_text(const RunFailures& failures);

// A configuration for `kintsugi train`. Empty inputs become placeholders marked FILL IN.
struct TrainingInputs {
  std::string model, data, tokenizer;
};
std::string training_yaml(const Planner& planner, const Evaluation& evaluation,
                          const TrainingInputs& inputs, double tokens);

// "1.2 MWh in GPUs, 1.5 MWh in nodes, 1.8 MWh with PUE", or the known part of it and the missing
// keys.
std::string energy_text(const RunEnergy& energy, const Machine& machine);

// Figures of a run in units large or small enough to avoid "0.0": days or hours, MWh or kWh, t or
// kg.
std::string in_days(double days);
// "1 token", "1.24 M tokens".
std::string tokens_text(double tokens);
// "25.2 t CO2e", or with both figures "25.2 t CO2e location-based, 0 kg market-based". Empty if
// neither is known.
std::string carbon_text(const std::optional<double>& tonnes,
                        const std::optional<double>& market_tonnes);

}  // namespace kintsugi
