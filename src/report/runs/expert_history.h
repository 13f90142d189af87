#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace kintsugi {

// How often the experts of a run were chosen over its steps: experts.jsonl.
struct ExpertHistory {
  static constexpr std::size_t kMostCells = 500'000;  // layers x experts x steps

  struct Layer {
    std::int64_t number = 0;
    std::vector<double> max_load = {}, entropy = {}, idle = {};  // per step, as in the file
    std::vector<double> dropped = {};                            // the same; 0: none, or unknown
    std::vector<float> loads = {};  // (steps, experts): choices, divided by their mean
  };
  std::int64_t experts = 0;        // of each layer
  std::vector<double> steps = {};  // ascending
  std::vector<Layer> layers = {};  // none: there is nothing to show
  bool thinned = false;            // the file has more records
  std::string problem = {};        // what could not be read, empty: nothing
};

// Reads records that are spread evenly over the file, the newest among them, and never the whole of
// a large file. Of repeated steps (after a rewind or a resume) the newest record that was read
// counts. Damaged lines, and those of a model of another shape than in the newest record, are left
// out.
ExpertHistory read_expert_history(const std::filesystem::path& file,
                                  std::size_t most_cells = ExpertHistory::kMostCells);

// The layers whose busiest expert has the largest load in the newest record, the worst first.
std::vector<const ExpertHistory::Layer*> worst_layers(const ExpertHistory& history,
                                                      std::size_t most);

// {"experts", "steps", "thinned", "layers": [{"layer", "max_load", "entropy", "idle", "dropped",
// "loads"}],
// "worst": indices of layers}; null if there are no layers. Two base64 digits of `loads` are the
// load of an expert in a step: 0 below 2^-7, otherwise 1 + 256 (7 + log2 of the load).
nlohmann::ordered_json to_json(const ExpertHistory& history);

}  // namespace kintsugi
