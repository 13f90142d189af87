#include "plan_accuracy/memory_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/statistics.h"
#include "plan_accuracy/megatron_memory.h"
#include "plan_accuracy/program_memory.h"

namespace kintsugi {
namespace {

// Rows with a pipeline stage, or with separate states and activations, are GPT models of programs
// that program_memory models.
MemoryPrediction predict_gpt(const CsvTable& table, std::size_t row, bool separate_states) {
  const auto whole = [&](const char* column, double otherwise) {
    return static_cast<std::int64_t>(table.quantity(row, column, otherwise));
  };
  PlanJob job;
  ModelConfig& c = job.model;
  c.family = Family::Gpt2;
  c.layers = whole("num_layers", 0);
  c.hidden_size = whole("hidden_size", 0);
  c.heads = whole("num_attention_heads", 0);
  c.ffn_size = whole("ffn_hidden_size", 4.0 * static_cast<double>(c.hidden_size));
  c.vocab_size = whole("vocab_size", 51200);
  c.max_positions = job.length = whole("seq_length", 0);
  Layout l;
  l.tp = static_cast<int>(whole("tensor_model_parallel_size", 1));
  l.pp = static_cast<int>(whole("pipeline_model_parallel_size", 1));
  const std::int64_t gpus = whole("gpus_total", 0);
  l.micro_batch = whole("micro_batch_size", 1);
  const std::int64_t stage = whole("pp_stage", 0);
  MemoryPrediction p;
  try {
    c.complete_and_check();
    if (l.tp < 1 || l.pp < 1 || l.pp > c.layers || c.layers > 10'000 || stage >= l.pp ||
        l.micro_batch < 1 || gpus < l.tp * l.pp || c.heads % l.tp != 0)
      user_error("invalid layout");
  } catch (const UserError& error) {
    p.why = error.what();
    return p;
  }
  l.dp = static_cast<int>(gpus / (l.tp * l.pp));
  job.batch = whole("global_batch_size", static_cast<double>(l.dp));
  l.chunks = std::max(1, static_cast<int>(whole("num_virtual_stages_per_pipeline_rank", 1)));
  if (l.chunks * l.pp > c.layers) {
    p.why = "more chunks than layers";
    return p;
  }
  l.zero = table.at(row, "use_distributed_optimizer").empty() ? 0 : 1;
  l.sequence_parallel = !table.at(row, "sequence_parallel").empty() && l.tp > 1;
  const std::string& recompute = table.at(row, "recompute_granularity");
  if (!recompute.empty())
    l.recompute = recompute == "full" ? Recompute::Full : Recompute::Selective;
  job.precision = table.at(row, "fp16").empty() ? DType::BF16 : DType::F16;
  const Program program = program_of_row(table, row);
  // The published figure counts fp32 gradients; Megatron-DeepSpeed has fp16 gradients.
  const MemoryRun run{.fused_attention = program.software.fused_attention,
                      .gradient_bytes = separate_states ? 4.0 : 2.0};
  const std::vector<ProgramMemory> stages = program_memory(program.memory, job, l, run);
  const ProgramMemory& memory = stages[static_cast<std::size_t>(stage)];
  p.peak = memory.total();
  p.activations = memory.activations;
  // The published states are those of layers only, as in the middle of a pipeline.
  p.states = stages[stages.size() / 2].states;
  return p;
}

struct ErrorGroup {
  int rows = 0;
  std::map<std::string, int> reasons = {};
  std::vector<double> errors = {};
};

// Adds a row's errors to the groups "dataset", or "dataset states" and "dataset activations".
void add_row(const CsvTable& table, std::size_t i, const MemoryPrediction& p,
             std::map<std::string, ErrorGroup>& groups) {
  const std::string& dataset = table.at(i, "dataset");
  const auto add = [&](const std::string& name, const char* column, double predicted) {
    const double measured = table.number(i, column);
    if (!(measured > 0)) return;
    ErrorGroup& g = groups[name];
    ++g.rows;
    if (p.why.empty())
      g.errors.push_back(predicted / measured - 1);
    else
      ++g.reasons[p.why];
  };
  add(dataset, "mem_max_allocated_bytes", p.peak);
  add(dataset + " states", "params_optimizer_bytes", p.states);
  add(dataset + " activations", "activation_bytes", p.activations);
}

}  // namespace

bool is_memory_table(const CsvTable& table) {
  return table.has("num_layers") && table.has("mem_max_allocated_bytes");
}

MemoryPrediction predict_memory(const CsvTable& table, std::size_t row) {
  const bool separate = table.number(row, "params_optimizer_bytes") > 0;
  if (separate || !table.at(row, "pp_stage").empty()) return predict_gpt(table, row, separate);
  if (table.has("program") && program_of_row(table, row).memory != MemoryForms::Megatron)
    user_error("{} line {}: the columns are Megatron's arguments, but program is {}",
               table.source(), table.line(row), table.at(row, "program"));
  const MegatronRun run = read_megatron_run(table, row);
  if (!run.problem.empty()) return {.why = run.problem};
  const MegatronMemory memory = megatron_memory(run);
  return {.peak = memory.total(), .states = memory.states, .activations = memory.activations};
}

std::string evaluated_memory_csv(const CsvTable& table,
                                 const std::vector<MemoryPrediction>& predictions) {
  std::vector<std::string> header = table.header();
  for (const char* name : {"predicted_bytes", "predicted_why"}) header.emplace_back(name);
  std::string text = csv_line(header);
  for (std::size_t i = 0; i < table.rows(); ++i) {
    std::vector<std::string> cells = table.row(i);
    const MemoryPrediction& p = predictions[i];
    cells.push_back(p.why.empty() ? fmt::format("{:.0f}", p.peak) : "");
    cells.push_back(p.why);
    text += csv_line(cells);
  }
  return text;
}

std::string memory_accuracy_table(const CsvTable& table,
                                  const std::vector<MemoryPrediction>& predictions) {
  std::map<std::string, ErrorGroup> groups;
  for (std::size_t i = 0; i < table.rows(); ++i) add_row(table, i, predictions[i], groups);
  std::string text =
      fmt::format("{:<30}{:>6}{:>12} |{:>7}{:>8}{:>8}{:>8}{:>11}\n", "memory, percent", "rows",
                  "predicted", "mean", "median", "bias", "worst", "beyond 5");
  std::map<std::string, int> reasons;
  for (const auto& [name, g] : groups) {
    for (const auto& [why, rows] : g.reasons) reasons[why] += rows;
    text += fmt::format("{:<30}{:>6}{:>12} |", name, g.rows, g.errors.size());
    if (g.errors.empty()) {
      text += fmt::format("{:>7}{:>8}{:>8}{:>8}{:>11}\n", "-", "-", "-", "-", "-");
      continue;
    }
    std::vector<double> absolute = g.errors;
    for (double& error : absolute) error = std::abs(error);
    text += fmt::format(
        "{:>7.1f}{:>8.1f}{:>8.1f}{:>8.1f}{:>11}\n", 100 * mean(absolute), 100 * median(absolute),
        100 * mean(g.errors), 100 * *std::max_element(absolute.begin(), absolute.end()),
        std::count_if(absolute.begin(), absolute.end(), [](double error) { return error > 0.05; }));
  }
  if (!reasons.empty()) text += "Not predicted:\n";
  for (const auto& [why, rows] : reasons) text += fmt::format("{:>6}  {}\n", rows, why);
  return text;
}

}  // namespace kintsugi
