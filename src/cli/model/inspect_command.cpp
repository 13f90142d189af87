#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/model/adapter_description.h"
#include "cli/model/commands.h"
#include "cli/model/description.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "model/adapter/peft_config.h"
#include "model/compare.h"
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

void print_tensors(const InspectedModel& model) {
  std::size_t width = 6;
  for (const InspectedTensor& tensor : model.tensors)
    width = std::max(width, printable(tensor.entry().name).size());
  const bool statistics = !model.tensors.empty() && model.tensors.front().statistics;
  fmt::print("\n{:<{}}  {:<6}{:<20}", "tensor", width, "dtype", "shape");
  if (statistics)
    fmt::print("{:>12}{:>12}{:>12}{:>12}{:>14}", "min", "max", "mean", "RMS", "not finite");
  fmt::print("\n");
  for (const InspectedTensor& tensor : model.tensors) {
    fmt::print("{:<{}}  {:<6}{:<20}", printable(tensor.entry().name), width,
               tensor.entry().dtype_name,
               fmt::format("[{}]", fmt::join(tensor.entry().shape, ", ")));
    if (const auto& values = tensor.statistics)
      fmt::print("{:>12.4g}{:>12.4g}{:>12.4g}{:>12.4g}{:>12.4g} %", values->min, values->max,
                 values->mean, values->rms, 100 * tensor.non_finite_share());
    fmt::print("\n");
  }
}

void print_inspection(const InspectedModel& model) {
  fmt::print("{}: {}, {} parameters\n\nconfiguration\n{}\nfiles\n", model.model.directory.string(),
             to_string(model.model.config.family),
             format_count(static_cast<double>(model.elements)),
             dimensions_table(model.model.config));
  for (const SafetensorsFile& file : model.model.tensors.files())
    fmt::print("  {:<36}{:>12}  {} tensors\n", file.path().filename().string(),
               format_bytes(static_cast<double>(std::filesystem::file_size(file.path()))),
               file.entries().size());
  fmt::print("\nparameters\n");
  for (const auto& [dtype, elements] : model.elements_by_dtype)
    fmt::print("  {:<24}{:>20}\n", dtype, grouped(elements));
  if (model.training)
    fmt::print("\ntraining\n  {:<24}{:>20}\n  {:<24}{:>20}\n", "step",
               grouped(model.training->step), "tokens", grouped(model.training->tokens));
  print_tensors(model);
}

void print_inspection_json(const InspectedModel& model) {
  using Json = nlohmann::ordered_json;
  Json json = {{"directory", model.model.directory.string()},
               {"family", to_string(model.model.config.family)},
               {"config", config_json(model.model.config)},
               {"parameters", model.elements},
               {"dtypes", model.elements_by_dtype},
               {"training", nullptr},
               {"files", Json::array()},
               {"tensors", Json::array()}};
  if (model.training)
    json["training"] = {{"step", model.training->step}, {"tokens", model.training->tokens}};
  for (const SafetensorsFile& file : model.model.tensors.files())
    json["files"].push_back({{"name", file.path().filename().string()},
                             {"bytes", std::filesystem::file_size(file.path())},
                             {"tensors", file.entries().size()}});
  for (const InspectedTensor& tensor : model.tensors) {
    Json entry = {{"name", tensor.entry().name},
                  {"dtype", tensor.entry().dtype_name},
                  {"shape", tensor.entry().shape},
                  {"file", tensor.location.file->path().filename().string()}};
    if (const auto& values = tensor.statistics) {
      entry["min"] = values->min;
      entry["max"] = values->max;
      entry["mean"] = values->mean;
      entry["rms"] = values->rms;
      entry["non_finite"] = tensor.non_finite_share();
    }
    json["tensors"].push_back(std::move(entry));
  }
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
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
  app->add_option(
         "directory", arguments->model,
         "A checkpoint, a run directory (its latest checkpoint), a Hugging Face model or an "
         "adapter (a PEFT directory)")
      ->required();
  app->add_flag("--statistics", arguments->statistics,
                "Minimum, maximum, mean, RMS and share of values that are not finite; reads all "
                "weights");
  app->add_flag("--json", arguments->json, "Print JSON");
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
