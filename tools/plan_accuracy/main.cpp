// plan_accuracy: what the planner predicts for measurements of other programs.
#include <fmt/format.h>

#include <ctime>
#include <string>

#include "cli/options.h"
#include "cli/process.h"
#include "core/error.h"
#include "core/file.h"
#include "core/output_file.h"
#include "core/units.h"
#include "plan_accuracy/measured_rows.h"
#include "plan_accuracy/memory_rows.h"
#include "plan_accuracy/residuals.h"

namespace kintsugi {
namespace {

struct Options {
  std::string rows = {};
  std::string machine = {};
  std::string output = {};  // empty: the terminal
  bool overwrite = false;
  bool accuracy = false;  // print a table of errors instead of the rows
  bool intervals = false;
  bool programs = false;
};

OutputRule output_rule(const Options& options) {
  return {options.overwrite, {options.rows, options.machine}};
}

std::string of_memory(const CsvTable& table, bool accuracy) {
  std::vector<MemoryPrediction> predictions;
  for (std::size_t i = 0; i < table.rows(); ++i) predictions.push_back(predict_memory(table, i));
  return accuracy ? memory_accuracy_table(table, predictions)
                  : evaluated_memory_csv(table, predictions);
}

std::string of_layouts(const CsvTable& table, const Options& options) {
  for (const char* column : {"layers", "hidden", "seq", "program", "GBS"})
    if (!table.has(column))
      user_error(
          "{} has no column '{}': give a file with the columns of layouts.csv or memory.csv "
          "(bench/published/README.md)",
          options.rows, column);
  std::optional<Machine> machine;
  if (!options.machine.empty()) machine = load_measured_machine(options.machine);
  std::vector<RowPrediction> predictions;
  for (std::size_t i = 0; i < table.rows(); ++i)
    predictions.push_back(predict(read_row(table, i, machine)));
  if (options.intervals)
    return intervals_file(residuals(table, predictions), options.rows,
                          iso_time(static_cast<double>(std::time(nullptr))).substr(0, 10));
  return options.accuracy ? accuracy_table(table, predictions) : evaluated_csv(table, predictions);
}

void list_programs() {
  for (const std::string& name : program_names()) {
    const Program program = load_program(name);
    std::string options;
    for (const ProgramOption& option : program.options) options += " " + option.name;
    fmt::print("{:<28}{}{}\n", name, program.name, options.empty() ? "" : "; options:" + options);
  }
}

void evaluate(const Options& options) {
  if (options.programs) return list_programs();
  if (options.rows.empty())
    user_error("give a CSV file with the columns of layouts.csv or memory.csv, or --programs");
  if (!options.output.empty()) check_output_file("--output", options.output, output_rule(options));
  const CsvTable table(read_text_file(options.rows), options.rows);
  const std::string text =
      is_memory_table(table) ? of_memory(table, options.accuracy) : of_layouts(table, options);
  if (options.output.empty())
    fmt::print("{}", text);
  else
    write_output_file("--output", options.output, output_rule(options), text);
}

int run(int argc, char** argv) {
  CLI::App app("Predict measured layouts of other programs, or the measured memory of ranks",
               "plan_accuracy");
  Options o;
  const AddOption add(app);
  add("rows", o.rows,
      "A CSV file with the columns of layouts.csv or memory.csv (bench/published/README.md)");
  add("--machine", o.machine,
      "Instead of the column: a machine's name (kintsugi plan machines) or YAML file");
  add("--accuracy", o.accuracy, "Print a table of errors instead of the rows");
  add("--intervals", o.intervals,
      "Print the intervals of predicted step times that these rows teach "
      "(uncertainty/step_time.yaml)");
  add("--programs", o.programs, "List the programs that are described, and their options");
  add("--output", o.output, "Write to this file");
  add_overwrite_option(app, o.overwrite);
  app.footer("Example:\n  plan_accuracy bench/published/layouts.csv --accuracy");
  try {
    app.parse(argc, argv);
    evaluate(o);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "error: {}\n", explain(error, app));
    return 2;
  } catch (const UserError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  kintsugi::prepare_process();
  return kintsugi::finish_process(kintsugi::run(argc, argv));
}
