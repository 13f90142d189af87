#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/model/description.h"
#include "cli/options.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/table.h"
#include "core/units.h"
#include "model/adapter/peft_config.h"
#include "model/files/compare.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

struct InspectedTensor {
  SafetensorsModel::Location location;
  std::int64_t elements = 0;
  std::optional<TensorStatistics> statistics;

  const SafetensorsEntry& entry() const { return *location.entry; }
  double non_finite_share() const {
    return elements == 0
               ? 0
               : static_cast<double>(statistics->non_finite) / static_cast<double>(elements);
  }
};

struct InspectedModel {
  StoredModel model;
  std::vector<InspectedTensor> tensors = {};
  std::map<std::string, std::int64_t> elements_by_dtype = {};
  std::int64_t elements = 0;
  std::optional<TrainerState> training = {};
};

InspectedModel inspect_model(const std::string& path, bool statistics) {
  InspectedModel result{StoredModel(path)};
  if (statistics) result.model.verify();
  CountedMemory memory;
  std::optional<BlockReader> reader;
  if (statistics) reader.emplace(memory);
  Progress progress("read", std::ssize(result.model.names), "tensors");
  for (const std::string& name : result.model.names) {
    InspectedTensor tensor{result.model.tensors.find(name), 0, {}};
    tensor.elements = elements_of(tensor.entry());
    if (reader && tensor.entry().dtype)
      tensor.statistics = tensor_statistics(*reader, tensor.location);
    result.elements += tensor.elements;
    result.elements_by_dtype[tensor.entry().dtype_name] += tensor.elements;
    result.tensors.push_back(std::move(tensor));
    progress.add(1);
  }
  if (std::filesystem::exists(result.model.directory / "trainer.json"))
    result.training = saved_state(result.model.directory);
  return result;
}

Table file_table(const InspectedModel& model) {
  Table table(
      {Column::text("", "name"), Column::bytes("", "bytes"), Column::number("", "tensors")});
  for (const SafetensorsFile& file : model.model.tensors.files())
    table.add({file.path().filename().string(),
               std::filesystem::file_size(file.path()),
               {file.entries().size(), fmt::format("{} tensors", file.entries().size())}});
  return table;
}

Table tensor_table(const InspectedModel& model) {
  std::vector<Column> columns = {Column::text("tensor", "name"), Column::text("dtype", "dtype"),
                                 Column::text("shape", "shape"), Column::hidden("file")};
  // Not of types that this program cannot read.
  if (std::any_of(model.tensors.begin(), model.tensors.end(),
                  [](const InspectedTensor& tensor) { return tensor.statistics.has_value(); })) {
    for (const auto& [title, key] :
         {std::pair{"min", "min"}, {"max", "max"}, {"mean", "mean"}, {"RMS", "rms"}})
      columns.push_back(Column::number(title, key, "{:.4g}"));
    columns.push_back(Column::number("not finite", "non_finite", [](double share) {
      return fmt::format("{:.4g} %", 100 * share);
    }));
    for (std::size_t i = columns.size() - 5; i < columns.size(); ++i) columns[i].optional = true;
  }
  Table table(columns);
  for (const InspectedTensor& tensor : model.tensors) {
    const SafetensorsEntry& entry = tensor.entry();
    std::vector<Cell> cells = {entry.name,
                               entry.dtype_name,
                               {entry.shape, fmt::format("[{}]", fmt::join(entry.shape, ", "))},
                               tensor.location.file->path().filename().string()};
    if (const auto& values = tensor.statistics)
      cells.insert(cells.end(), {values->min, values->max, values->mean, values->rms,
                                 tensor.non_finite_share()});
    cells.resize(columns.size(), Cell::missing());
    table.add(std::move(cells));
  }
  return table;
}

void print_inspection(const InspectedModel& model) {
  fmt::print("{}: {}, {} parameters\n\nconfiguration\n{}\nfiles\n", model.model.directory.string(),
             to_string(model.model.config.family),
             format_count(static_cast<double>(model.elements)),
             dimensions_table(model.model.config));
  fmt::print("{}\nparameters\n", file_table(model).text({.indent = 2}));
  for (const auto& [dtype, elements] : model.elements_by_dtype)
    fmt::print("  {:<24}{:>20}\n", dtype, grouped(elements));
  if (model.training)
    fmt::print("\ntraining\n  {:<24}{:>20}\n  {:<24}{:>20}\n", "step",
               grouped(model.training->step), "tokens", grouped(model.training->tokens));
  fmt::print("\n{}", tensor_table(model).text());
}

void print_inspection_json(const InspectedModel& model) {
  using Json = nlohmann::ordered_json;
  Json json = {{"directory", model.model.directory.string()},
               {"family", to_string(model.model.config.family)},
               {"config", config_json(model.model.config)},
               {"parameters", model.elements},
               {"dtypes", model.elements_by_dtype},
               {"training", nullptr},
               {"files", file_table(model).json()},
               {"tensors", tensor_table(model).json()}};
  if (model.training)
    json["training"] = {{"step", model.training->step}, {"tokens", model.training->tokens}};
  fmt::print("{}", json_lines(json));
}

}  // namespace

void add_model_inspect(CLI::App& model) {
  struct Arguments {
    std::string model;
    bool json = false, statistics = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* app =
      model.add_subcommand("inspect", "List the configuration, files and tensors of a model");
  const AddOption add(*app);
  add("directory", arguments->model,
      "A checkpoint, a run directory (its latest checkpoint), a Hugging Face model or an adapter "
      "(a PEFT directory)",
      kRequired);
  add("--statistics", arguments->statistics,
      "Minimum, maximum, mean, RMS and share of values that are not finite; reads all weights");
  add("--json", arguments->json, "Print JSON");
  app->footer("Example:\n  kintsugi model inspect runs/demo --statistics");
  app->callback([arguments] {
    if (const auto directory = model_directory(arguments->model); is_adapter_directory(directory)) {
      if (arguments->statistics)
        user_error("--statistics needs a complete model, and {} is an adapter", directory.string());
      return print_adapter(directory, arguments->json, true);
    }
    const InspectedModel found = inspect_model(arguments->model, arguments->statistics);
    (arguments->json ? print_inspection_json : print_inspection)(found);
  });
}

}  // namespace kintsugi
