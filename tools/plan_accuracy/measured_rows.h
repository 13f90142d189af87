#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/search/csv.h"
#include "plan/search/interval.h"
#include "plan_accuracy/program.h"
#include "plan_accuracy/program_memory.h"

namespace kintsugi {

// A published measurement as planner input. If the row does not give the full layout, `layouts` has
// all possibilities; the fastest that fits is predicted.
struct MeasuredRow {
  PlanJob job = {};
  Machine machine = {};
  Program program = {};  // as the row's options change it
  std::vector<Layout> layouts = {};
  MemoryRun run = {};
  bool with_device = false;  // memory as in nvidia-smi: with context and fragmentation
  bool open_zero = false;    // the row does not give the ZeRO stage
  double sequences = 0;      // per step, even if they do not divide evenly
  std::string problem = {};  // why there is no prediction
  bool impossible = false;   // no program can run this layout
};
// `machine` replaces the one in the row's column. UserError, with the line, for words that the
// columns do not have.
MeasuredRow read_row(const CsvTable& table, std::size_t row,
                     const std::optional<Machine>& machine = {});

struct RowPrediction {
  double step_s = 0, tokens_per_s_per_gpu = 0, memory_gb = 0;
  bool fits = false;
  bool impossible = false;  // no program can run this layout; there is no step time
  std::string why = {};     // why there is no prediction, or why it does not fit
  double slow_chance = 0;   // probability that the run has slow messages (Program::slow_nodes)
  double slow_s = 0;        // their cost; part of step_s if the probability is at least 0.5
  Evaluation evaluation = {};
  StepKind kind = StepKind::Nodes;
};
RowPrediction predict(const MeasuredRow& row);

// The rows with the added columns predicted_step_time_s, predicted_tokens_per_s_per_gpu,
// predicted_mem_GB, predicted_fits, predicted_why, predicted_slow_chance, predicted_slow_s, and the
// ends of the 90 % interval, predicted_low_s and predicted_high_s.
std::string evaluated_csv(const CsvTable& table, const std::vector<RowPrediction>& predictions);
// Errors by dataset: time, bias, memory, predicted failures, regret of the choice.
std::string accuracy_table(const CsvTable& table, const std::vector<RowPrediction>& predictions);

}  // namespace kintsugi
