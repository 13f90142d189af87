#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/model/description.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/table.h"
#include "model/files/compare.h"

namespace kintsugi {
namespace {

constexpr std::size_t kShownTensors = 10;

std::string type_text(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

void print_values(const ModelComparison& models) {
  std::size_t differing = 0;
  for (const TensorComparison& tensor : models.tensors) differing += tensor.differing > 0;
  if (differing == 0) return;
  fmt::print("values: {} of {} tensors differ{}\n", differing, models.tensors.size(),
             differing > kShownTensors ? fmt::format("; the {} largest differences:", kShownTensors)
                                       : ":");
  Table table({Column::number("relative", "", "{:.4g}"), Column::number("largest", "", "{:.4g}"),
               Column::number("RMS", "", "{:.4g}"), Column::number("elements"),
               Column::text("tensor")});
  for (std::size_t i = 0; i < std::min(differing, kShownTensors); ++i) {
    const TensorComparison& tensor = models.tensors[i];
    table.add({tensor.relative(), tensor.max_difference, tensor.rms, grouped(tensor.differing),
               tensor.name});
  }
  fmt::print("{}", table.text({.indent = 2}));
}

void print_difference(const StoredModel& first, const StoredModel& second,
                      const ModelComparison& models) {
  if (models.equal()) {
    fmt::print("equal: {} tensors and config.json\n", models.tensors.size());
    return;
  }
  for (const ConfigComparison& key : models.config)
    fmt::print("config.json: {}: {} | {}\n", printable(key.key),
               key.first.empty() ? "(absent)" : printable(key.first),
               key.second.empty() ? "(absent)" : printable(key.second));
  for (const std::string& name : models.only_first)
    fmt::print("only in {}: {}\n", first.directory.string(), printable(name));
  for (const std::string& name : models.only_second)
    fmt::print("only in {}: {}\n", second.directory.string(), printable(name));
  std::map<std::string, int> dtypes;  // change -> number of tensors
  for (const TensorComparison& tensor : models.tensors) {
    if (!tensor.same_shape())
      fmt::print("shape: {}: {} | {}\n", printable(tensor.name),
                 type_text(tensor.first_dtype, tensor.first_shape),
                 type_text(tensor.second_dtype, tensor.second_shape));
    else if (!tensor.same_dtype())
      ++dtypes[tensor.first_dtype + " | " + tensor.second_dtype];
  }
  for (const auto& [change, count] : dtypes) fmt::print("dtype: {} tensors: {}\n", count, change);
  print_values(models);
}

nlohmann::ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

void print_difference_json(const StoredModel& first, const StoredModel& second,
                           const ModelComparison& models) {
  using Json = nlohmann::ordered_json;
  Json json = {{"first", first.directory.string()}, {"second", second.directory.string()},
               {"equal", models.equal()},           {"config", Json::object()},
               {"only_first", models.only_first},   {"only_second", models.only_second},
               {"tensors", Json::array()}};
  const auto value = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json::parse(text);
  };
  for (const ConfigComparison& key : models.config)
    json["config"][key.key] = {{"first", value(key.first)}, {"second", value(key.second)}};
  for (const TensorComparison& tensor : models.tensors) {
    if (tensor.equal()) continue;
    Json entry = {{"name", tensor.name},
                  {"first", {{"dtype", tensor.first_dtype}, {"shape", tensor.first_shape}}},
                  {"second", {{"dtype", tensor.second_dtype}, {"shape", tensor.second_shape}}}};
    if (tensor.same_shape()) {
      entry["elements"] = tensor.elements;
      entry["differing"] = tensor.differing;
      entry["max_difference"] = finite_or_null(tensor.max_difference);
      entry["rms"] = tensor.rms;
      entry["relative"] = finite_or_null(tensor.relative());
    }
    json["tensors"].push_back(std::move(entry));
  }
  fmt::print("{}", json_lines(json));
}

struct ModelDiffArguments {
  std::string first, second;
  bool json = false;
};

// Exit code 1 means that the models differ, so a file that cannot be read is 2.
bool run_model_diff(const ModelDiffArguments& arguments) {
  try {
    const StoredModel first(arguments.first), second(arguments.second);
    const ModelComparison models = [&] {
      Progress progress("compare", 0, "parameters");
      return compare_models(first, second, progress.callback());
    }();
    (arguments.json ? print_difference_json : print_difference)(first, second, models);
    return models.equal();
  } catch (const Failure& error) {
    user_error("{}", error.what());
  }
}

}  // namespace

void add_model_diff(CLI::App& model) {
  const auto arguments = std::make_shared<ModelDiffArguments>();
  CLI::App* app = model.add_subcommand("diff", "Compare the weights and config.json of two models");
  const AddOption add(*app);
  const char* what =
      "A checkpoint, a run directory (its latest checkpoint) or a Hugging Face model";
  add("first", arguments->first, what, kRequired);
  add("second", arguments->second, what, kRequired);
  add("--json", arguments->json, "Print JSON, with every tensor that differs");
  app->footer(
      "Lists the tensors with the largest differences, relative to the RMS of the first model's "
      "tensor.\nExit codes: 0 equal, 1 different, 2 a model cannot be read.\n\nExample:\n"
      "  kintsugi model diff runs/demo demo-bf16");
  app->callback([arguments] {
    if (!run_model_diff(*arguments)) throw CLI::RuntimeError(1);
  });
}

}  // namespace kintsugi
