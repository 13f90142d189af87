#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "plan/foreign/measured_rows.h"
#include "plan/foreign/memory_rows.h"

namespace kintsugi {
namespace {

struct PlanEvaluateOptions {
  std::string rows;
  std::string machine = {};
  std::string output = {};  // empty: the terminal
  bool overwrite = false;
  bool accuracy = false;  // print a table of errors instead of the rows
};

OutputRule output_rule(const PlanEvaluateOptions& options) {
  return {options.overwrite, {options.rows, options.machine}};
}

void print_or_write(const std::string& text, const PlanEvaluateOptions& options) {
  if (options.output.empty())
    fmt::print("{}", text);
  else
    write_output_file("--output", options.output, output_rule(options), text);
}

std::string evaluate_memory(const CsvTable& table, bool accuracy) {
  std::vector<MemoryPrediction> predictions;
  for (std::size_t i = 0; i < table.rows(); ++i) predictions.push_back(predict_memory(table, i));
  return accuracy ? memory_accuracy_table(table, predictions)
                  : evaluated_memory_csv(table, predictions);
}

void plan_evaluate(const PlanEvaluateOptions& options) {
  if (!options.output.empty()) check_output_file("--output", options.output, output_rule(options));
  const CsvTable table(read_text_file(options.rows), options.rows);
  if (is_memory_table(table)) {
    print_or_write(evaluate_memory(table, options.accuracy), options);
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
  print_or_write(text, options);
}

}  // namespace

void add_plan_evaluate(CLI::App& plan) {
  const auto o = std::make_shared<PlanEvaluateOptions>();
  CLI::App* command =
      plan.add_subcommand("evaluate", "Predict measured layouts, or the measured memory of ranks");
  const AddOption add(*command);
  add("rows", o->rows,
      "A CSV file with the columns of layouts.csv or memory.csv (docs/planning.md)", kRequired);
  add("--machine", o->machine,
      "Instead of the hardware of the rows: a machine's name (kintsugi plan machines) or YAML "
      "file");
  add("--accuracy", o->accuracy, "Print a table of errors instead of the rows");
  add("--output", o->output, "Write to this file");
  add_overwrite_option(*command, o->overwrite);
  command->footer("Example:\n  kintsugi plan evaluate rows.csv --accuracy");
  command->callback([o] { plan_evaluate(*o); });
}

}  // namespace kintsugi
