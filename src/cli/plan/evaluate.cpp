#include "cli/plan/evaluate.h"

#include <fmt/format.h>

#include "cli/plan/search.h"
#include "core/error.h"
#include "core/file.h"
#include "plan/foreign/measured_rows.h"
#include "plan/foreign/memory_rows.h"

namespace kintsugi {
namespace {

void print_or_write(const std::string& text, const std::string& output) {
  if (output.empty())
    fmt::print("{}", text);
  else
    write_file_atomically(output, text);
}

std::string evaluate_memory(const CsvTable& table, bool accuracy) {
  std::vector<MemoryPrediction> predictions;
  for (std::size_t i = 0; i < table.rows(); ++i) predictions.push_back(predict_memory(table, i));
  return accuracy ? memory_accuracy_table(table, predictions)
                  : evaluated_memory_csv(table, predictions);
}

}  // namespace

void plan_evaluate(const PlanEvaluateOptions& options) {
  if (!options.output.empty()) check_folder("--output", options.output);
  const CsvTable table(read_text_file(options.rows), options.rows);
  if (is_memory_table(table)) {
    print_or_write(evaluate_memory(table, options.accuracy), options.output);
    return;
  }
  for (const char* column : {"layers", "hidden", "seq", "hardware", "GBS"})
    if (!table.has(column))
      user_error(
          "{} has no column '{}': give a file with the columns of layouts.csv or memory.csv "
          "(docs/planning.md)",
          options.rows, column);
  std::optional<Machine> machine;
  if (!options.machine.empty()) machine = load_machine(options.machine);
  std::vector<RowPrediction> predictions;
  for (std::size_t i = 0; i < table.rows(); ++i)
    predictions.push_back(predict(read_row(table, i, machine)));
  const std::string text =
      options.accuracy ? accuracy_table(table, predictions) : evaluated_csv(table, predictions);
  print_or_write(text, options.output);
}

}  // namespace kintsugi
