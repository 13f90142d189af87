#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/foreign/csv.h"
#include "plan/foreign/foreign_memory.h"
#include "plan/search/planner.h"

namespace kintsugi {

// A layout that somebody measured, in the words of this planner. What the row leaves open has
// several values here; the best that fits is meant.
struct MeasuredRow {
  PlanJob job = {};
  Machine machine = {};
  Software software = {};
  std::vector<Layout> layouts = {};
  System system = System::MegatronCore;
  ForeignRun run = {};
  bool with_device = false;  // its memory is that of nvidia-smi: context and fragments included
  bool open_zero = false;    // it does not say what the data ranks share
  double sequences = 0;      // of a step, also where they do not divide evenly
  std::string problem = {};  // why there is nothing to predict
  bool impossible = false;   // which is that no program runs such a layout
};
// `machine`: instead of the one that the row's hardware names.
MeasuredRow read_row(const CsvTable& table, std::size_t row,
                     const std::optional<Machine>& machine = {});

struct RowPrediction {
  double step_s = 0, tokens_per_s_per_gpu = 0, memory_gb = 0;
  bool fits = false;
  bool impossible = false;  // to cut so, so that there is no time either
  std::string why = {};     // where it cannot be said, or does not fit
  Evaluation evaluation = {};
};
RowPrediction predict(const MeasuredRow& row);

// The rows with the columns predicted_step_time_s, predicted_tokens_per_s_per_gpu,
// predicted_mem_GB, predicted_fits, predicted_why, predicted_slow_chance, predicted_slow_s.
std::string evaluated_csv(const CsvTable& table, const std::vector<RowPrediction>& predictions);
// Errors by dataset: time, bias, memory, failures found, regret of the choice.
std::string accuracy_table(const CsvTable& table, const std::vector<RowPrediction>& predictions);

}  // namespace kintsugi
