#include "cli/plan_evaluate.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "plan/measured_rows.h"

namespace kintsugi {

void plan_evaluate(const PlanEvaluateOptions& options) {
  const CsvTable table(read_text_file(options.rows), options.rows);
  for (const char* column : {"layers", "hidden", "seq", "hardware", "GBS"})
    if (!table.has(column))
      user_error("{} has no column '{}': the schema is that of layouts.csv (docs/planning.md)",
                 options.rows, column);
  std::optional<Machine> machine;
  if (!options.machine.empty()) machine = load_machine(options.machine);
  std::vector<RowPrediction> predictions;
  for (std::size_t i = 0; i < table.rows(); ++i)
    predictions.push_back(predict(read_row(table, i, machine)));
  const std::string text =
      options.accuracy ? accuracy_table(table, predictions) : evaluated_csv(table, predictions);
  if (options.output.empty())
    fmt::print("{}", text);
  else
    write_file_atomically(options.output, text);
}

}  // namespace kintsugi
