#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/runs/run_summary.h"

namespace kintsugi {

// What follows from the configuration of a run by code above this folder.
struct ModelFacts {
  struct Stage {
    std::string name = {};  // empty: the run has no `stages:`
    double training_flops_per_token = 0;
  };
  std::int64_t parameters = 0, active = 0, trained = 0;
  std::int64_t context = 0;            // tokens
  double reading_flops_per_token = 0;  // forward, in a text of `context` tokens
  std::vector<Stage> stages = {};
  std::string problem = {};  // why the configuration says nothing; empty: it was read
};

struct DocumentedRun {
  std::string name = {};
  std::filesystem::path directory = {};
  RunSummary summary = {};
  ModelFacts facts = {};
};

// What the directories of the runs of one model (its stages, in their order; the model is that of
// the last one) say for the model documentation form of the EU's Code of Practice for
// general-purpose AI models: {"model", "rows", "runs", "evaluations", "not_found", "to_be_added"}.
// Nothing is guessed: what no file says is in one of the last two lists.
nlohmann::ordered_json model_documentation(const std::vector<DocumentedRun>& runs);
std::string documentation_markdown(const nlohmann::ordered_json& documentation);

// The card (README.md) of the model's newest checkpoint, with compute, energy and evaluations.
// Empty if there is no checkpoint with a card.
std::string documented_model_card(const DocumentedRun& last,
                                  const nlohmann::ordered_json& documentation);

}  // namespace kintsugi
