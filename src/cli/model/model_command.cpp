#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/model/description.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/table.h"
#include "core/units.h"
#include "model/adapter/peft_config.h"
#include "model/config.h"
#include "model/metrics.h"

namespace kintsugi {
namespace {

// Default sequence length: most of pre-training uses at most this. Longer contexts are trained
// last and briefly.
constexpr std::int64_t kUsualSequence = 8192;

// Bytes per parameter of AdamW training, in the two usual precisions.
struct StateCost {
  const char* name;
  const char* key;
  double bf16_mixed;
  double fp32;
};
constexpr std::array<StateCost, 4> kStateCosts = {{
    {"weights", "weights", 2, 4},
    {"fp32 master weights", "master", 4, 0},  // in fp32 the weights are their own master
    {"gradients", "gradients", 4, 4},
    {"Adam moments", "moments", 8, 8},
}};

struct Description {
  std::string name;
  ModelConfig config;
  std::int64_t sequence_length;
  ModelSize size;
  TrainingFlops flops;
};

std::string table(const Description& d) {
  std::string text =
      fmt::format("{}: {} parameters\n\ndimensions\n{}\nparameters\n", d.name,
                  format_count(static_cast<double>(d.size.total)), dimensions_table(d.config));
  for (int i = 0; i < kParameterGroups; ++i) {
    if (d.size.by_group[i] == 0) continue;
    text += fmt::format(
        "  {:<24}{:>20}{:>8.1f} %\n", to_string(static_cast<ParameterGroup>(i)),
        grouped(d.size.by_group[i]),
        100.0 * static_cast<double>(d.size.by_group[i]) / static_cast<double>(d.size.total));
  }
  text += fmt::format("  {:<24}{:>20}\n", "total", grouped(d.size.total));
  if (d.size.active != d.size.total)
    text +=
        fmt::format("  {:<24}{:>20}{:>8.1f} %\n", "used by a token", grouped(d.size.active),
                    100.0 * static_cast<double>(d.size.active) / static_cast<double>(d.size.total));

  text += fmt::format("\ntraining FLOPs per token, sequences of {} tokens\n",
                      grouped(d.sequence_length));
  const auto flops = [&](const char* name, double value) {
    const bool giga = value >= 1e9;
    text += fmt::format("  {:<24}{:>14.2f} {}FLOP\n", name, value / (giga ? 1e9 : 1e6),
                        giga ? "G" : "M");
  };
  flops("matmuls only", d.flops.linear);
  flops("with causal attention", d.flops.causal());
  flops("with full attention", d.flops.full());

  text += fmt::format("\n{:<26}{:>16}{:>16}\n", "training state", "bf16 mixed", "fp32");
  const auto total = static_cast<double>(d.size.total);
  const auto row = [&](const char* name, double bf16, double fp32) {
    text += fmt::format("  {:<24}{:>16}{:>16}\n", name, format_bytes(bf16 * total),
                        fp32 > 0 ? format_bytes(fp32 * total) : "-");
  };
  StateCost sum = {"total", "total", 0, 0};
  for (const StateCost& cost : kStateCosts) {
    row(cost.name, cost.bf16_mixed, cost.fp32);
    sum.bf16_mixed += cost.bf16_mixed;
    sum.fp32 += cost.fp32;
  }
  row(sum.name, sum.bf16_mixed, sum.fp32);
  return text +
         fmt::format("  {:<24}{:>14} B{:>14} B\n", "per parameter", sum.bf16_mixed, sum.fp32);
}

std::string json_text(const Description& d) {
  using nlohmann::ordered_json;
  const ordered_json config = config_json(d.config);
  ordered_json parameters, state;
  for (int i = 0; i < kParameterGroups; ++i)
    parameters[std::string(to_string(static_cast<ParameterGroup>(i)))] = d.size.by_group[i];
  parameters["total"] = d.size.total;
  parameters["active"] = d.size.active;
  const auto total = static_cast<double>(d.size.total);
  for (const StateCost& cost : kStateCosts) {
    state["bf16_mixed"][cost.key] = static_cast<std::int64_t>(cost.bf16_mixed * total);
    state["fp32"][cost.key] = static_cast<std::int64_t>(cost.fp32 * total);
  }
  const ordered_json root = {
      {"name", d.name},
      {"config", config},
      {"parameters", parameters},
      {"sequence_length", d.sequence_length},
      {"flops_per_token",
       {{"linear", d.flops.linear}, {"causal", d.flops.causal()}, {"full", d.flops.full()}}},
      {"state_bytes", state}};
  return json_lines(root);
}

std::string preset_list(bool as_json) {
  if (as_json) return json_lines(preset_names());
  Table table({Column::text("preset"), Column::text("family"), Column::number("parameters"),
               Column::number("layers"), Column::number("hidden"), Column::number("heads")});
  for (const std::string& name : preset_names()) {
    const ModelConfig config = load_preset(name);
    const auto total = static_cast<double>(ParameterSet(config).elements());
    table.add({name, to_string(config.family), format_count(total), config.layers,
               config.hidden_size, config.heads});
  }
  return table.text();
}

Description describe(const std::string& name, const std::string& sequence_length) {
  Description d{
      .name = name, .config = resolve_model(name), .sequence_length = 0, .size = {}, .flops = {}};
  const std::int64_t longest = d.config.max_positions;
  d.sequence_length = std::min(longest, kUsualSequence);
  if (!sequence_length.empty()) d.sequence_length = parse_count(sequence_length);
  if (d.sequence_length <= 0)
    user_error("--sequence-length is {}: it must be positive", d.sequence_length);
  if (d.config.positions() == PositionKind::Learned && d.sequence_length > longest)
    user_error("--sequence-length is {}, but {} has a table of {} positions", d.sequence_length,
               name, longest);
  d.size = count_parameters(ParameterSet(d.config));
  d.flops = training_flops_per_token(d.config, d.sequence_length);
  return d;
}

struct ModelCommandOptions {
  std::string model;
  std::string sequence_length;
  bool list = false;
  bool as_json = false;
};

void show(const ModelCommandOptions& options) {
  if (options.list && !options.model.empty())
    user_error("kintsugi model takes a model or --list, not both");
  if (!options.list && options.model.empty())
    user_error(
        "kintsugi model needs the name of a preset, a YAML file or a model directory; --list shows "
        "the presets");
  if (options.list) {
    fmt::print("{}", preset_list(options.as_json));
    return;
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(options.model, ignored))
    if (const auto directory = model_directory(options.model); is_adapter_directory(directory))
      return print_adapter(directory, options.as_json, false);
  const Description description = describe(options.model, options.sequence_length);
  fmt::print("{}", options.as_json ? json_text(description) : table(description));
}

}  // namespace

void add_model_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "model",
      "Show dimensions, parameters, FLOPs and memory of a model; merge, convert and compare");
  const AddOption add(*command);
  const auto options = std::make_shared<ModelCommandOptions>();
  add("MODEL", options->model,
      "The name of a preset, a YAML file, a config.json or its directory, or an adapter (a PEFT "
      "directory)");
  add("--sequence-length", options->sequence_length,
      "Tokens per sequence for the FLOPs of attention (default: the model's maximum, at most "
      "8192)");
  add("--list", options->list, "List the presets");
  add("--json", options->as_json, "Print JSON");
  command->footer(
      "The subcommands work on model directories: Hugging Face models, checkpoints, or run "
      "directories\n(their latest checkpoint). A directory with the name of a command is written "
      "./merge.\n\nExamples:\n"
      "  kintsugi model llama-8b --sequence-length 8192\n"
      "  kintsugi model runs/demo/checkpoints/latest --json\n"
      "  kintsugi model --list\n"
      "  kintsugi model merge runs/a runs/b --output merged");
  command->require_subcommand(0, 1);
  command->callback([command, options] {
    if (command->get_subcommands().empty()) show(*options);
  });
  add_model_merge(*command);
  add_model_merge_adapter(*command);
  add_model_convert(*command);
  add_model_upcycle(*command);
  add_model_import(*command);
  add_model_diff(*command);
  add_model_inspect(*command);
}

}  // namespace kintsugi
