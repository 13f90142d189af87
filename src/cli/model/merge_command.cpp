#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "data/tokenizers/tokenizer.h"
#include "model/adapter/merge_adapter.h"
#include "model/files/merge.h"
#include "model/import/import.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

struct OutputArguments {
  std::string directory, dtype, max_shard_size = "5GB";
  bool overwrite = false;
};

struct ModelMergeArguments {
  std::vector<std::string> models;
  std::string weights;
  std::optional<double> slerp;
  bool allow_other_tokenizer = false;
  OutputArguments output;
};

struct MergeAdapterArguments {
  std::string adapter, base;
  bool allow_other_base = false;
  OutputArguments output;
};

std::vector<double> parse_weights(const std::string& text) {
  std::vector<double> weights;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    try {
      weights.push_back(parse_real(std::string_view(text).substr(begin, end - begin)));
    } catch (const UserError& error) {
      user_error("--weights {}: {}", text, error.what());
    }
    begin = end + 1;
  }
  return weights;
}

// Calls write() with the options, shows the progress and prints what was written.
template <class Write>
void write_with_progress(const OutputArguments& arguments, const Write& write) {
  ModelOutput output;
  if (!arguments.dtype.empty()) output.dtype = parse_precision(arguments.dtype);
  output.max_shard_bytes = static_cast<std::uint64_t>(parse_bytes(arguments.max_shard_size));
  output.overwrite = arguments.overwrite;
  std::optional<Progress> progress(std::in_place, "write " + arguments.directory, 0, "parameters");
  output.progress = progress->callback();
  const WrittenModel result = write(output);
  progress.reset();
  if (result.non_finite > 0)
    log_warning("{} values of the result are not finite, the first in tensor {}", result.non_finite,
                result.first_non_finite);
  log_info("{}: {} tensors, {} parameters, {} in {}", arguments.directory, result.tensors,
           format_count(static_cast<double>(result.elements)),
           format_bytes(static_cast<double>(result.bytes)),
           format_number(static_cast<std::int64_t>(result.files), "file"));
}

// Weights that were trained with different ids do not belong together.
void check_tokenizers(const std::vector<std::string>& models, bool allow) {
  std::unique_ptr<Tokenizer> first;
  for (const std::string& model : models) {
    std::unique_ptr<Tokenizer> own;
    try {
      own = load_tokenizer(model_directory(model).string());
    } catch (const UserError&) {  // it has none that can be read
    }
    if (own && first && !gives_same_ids(*first, *own)) {
      const std::string text =
          fmt::format("{} has another tokenizer ({}) than {} ({})", model, own->description(),
                      models.front(), first->description());
      if (!allow)
        user_error(
            "{}: the same text gets other ids, so that their average has no meaning; to merge them "
            "all the same, give --allow-other-tokenizer",
            text);
      log_warning("{}: the merged model has that of {}", text, models.front());
    }
    if (&model == &models.front()) first = std::move(own);
  }
}

void run_model_merge(const ModelMergeArguments& arguments) {
  check_tokenizers(arguments.models, arguments.allow_other_tokenizer);
  MergeOptions options;
  if (!arguments.weights.empty()) options.weights = parse_weights(arguments.weights);
  options.slerp = arguments.slerp;
  write_with_progress(arguments.output, [&](const ModelOutput& output) {
    options.output = output;
    return merge_models({arguments.models.begin(), arguments.models.end()},
                        arguments.output.directory, options);
  });
}

void add_output_options(CLI::App& app, OutputArguments& arguments,
                        const std::string& from = "the first model") {
  const AddOption add(app);
  add("--output", arguments.directory, "The new model directory", kRequired);
  add("--dtype", arguments.dtype, "Type of the weights (default: as in " + from + ")",
      CLI::IsMember({"bf16", "fp16", "fp32"}));
  add("--max-shard-size", arguments.max_shard_size,
      "Bytes of weights per file; larger models get several files and an index",
      byte_count(at_least(1)), kShowDefault);
  add_overwrite_option(app, arguments.overwrite);
}

}  // namespace

void add_model_merge(CLI::App& model) {
  const auto arguments = std::make_shared<ModelMergeArguments>();
  CLI::App* app =
      model.add_subcommand("merge", "Average the weights of several models of the same shape");
  const AddOption add(*app);
  add("models", arguments->models,
      "Checkpoints, run directories (their latest checkpoint) or Hugging Face models", kRequired);
  CLI::Option* weights =
      add("--weights", arguments->weights,
          "One weight per model, separated by commas, with sum 1 (default: equal)");
  add("--slerp", arguments->slerp,
      "Spherical interpolation between two models: 0 is the first, 1 the second",
      real_number(between(0, 1)))
      ->excludes(weights);
  add("--allow-other-tokenizer", arguments->allow_other_tokenizer,
      "Merge models although their tokenizers differ");
  add_output_options(*app, arguments->output);
  app->footer(
      "Sums are computed in double precision and rounded once. Memory use is small for models of "
      "any size.\nThe configuration and the tokenizer are those of the first model.\n\nExamples:\n"
      "  kintsugi model merge runs/demo/checkpoints/step-00000300 "
      "runs/demo/checkpoints/step-00000400 --output merged\n"
      "  kintsugi model merge a b c --weights 0.5,0.3,0.2 --output merged --dtype bf16\n"
      "  kintsugi model merge a b --slerp 0.5 --output merged");
  app->callback([arguments] {
    if (arguments->models.size() < 2)
      user_error("kintsugi model merge needs two or more models; model convert takes one");
    run_model_merge(*arguments);
  });
}

void add_model_convert(CLI::App& model) {
  const auto arguments = std::make_shared<ModelMergeArguments>();
  CLI::App* app =
      model.add_subcommand("convert", "Copy a model with another type or other file sizes");
  const AddOption add(*app);
  arguments->models.resize(1);
  add("directory", arguments->models.front(),
      "A checkpoint, a run directory (its latest checkpoint) or a Hugging Face model", kRequired);
  add_output_options(*app, arguments->output);
  app->footer(
      "The copy has no training state.\n\nExample:\n"
      "  kintsugi model convert runs/demo --output demo-bf16 --dtype bf16");
  app->callback([arguments] { run_model_merge(*arguments); });
}

void add_model_upcycle(CLI::App& model) {
  struct Arguments {
    std::string model;
    UpcycleOptions options;
    bool allow_unused = false;
    OutputArguments output;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* app = model.add_subcommand(
      "upcycle", "Make a mixture of experts from a model: every expert is a copy of its MLP");
  const AddOption add(*app);
  add("directory", arguments->model,
      "A checkpoint, a run directory (its latest checkpoint) or a Hugging Face model", kRequired);
  add("--experts", arguments->options.experts, "Experts of a layer", whole_number(between(1, 1024)),
      kShowDefault);
  add("--top-k", arguments->options.chosen, "Experts that a token uses",
      whole_number(between(1, 1024)), kShowDefault);
  add("--seed", arguments->options.seed, "Seed of the routers, which are random", seed_number(),
      kShowDefault);
  add("--allow-unused-weights", arguments->allow_unused,
      "Ignore tensors that the configuration of the model does not use");
  add_output_options(*app, arguments->output);
  app->footer(
      "Llama becomes Mixtral, Qwen3 becomes Qwen3-MoE. The mixture computes what the model did "
      "until "
      "it is trained (model.init).\n\nExample:\n"
      "  kintsugi model upcycle runs/demo --experts 8 --top-k 2 --output demo-experts");
  app->callback([arguments] {
    write_with_progress(arguments->output, [&](const ModelOutput& output) {
      arguments->options.output = output;
      if (arguments->allow_unused) arguments->options.unused = UnusedWeights::Allow;
      return upcycle_model(arguments->model, arguments->output.directory, arguments->options);
    });
  });
}

void add_model_import(CLI::App& model) {
  struct Arguments {
    std::string checkpoint, model, format = "auto", tokenizer;
    bool optimizer = false;
    OutputArguments output;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* app = model.add_subcommand(
      "import", "Make a model of the weights in a checkpoint of Megatron or torchtitan");
  const AddOption add(*app);
  add("checkpoint", arguments->checkpoint,
      "The directory of one checkpoint, or Megatron's directory of all of them (the latest)",
      kRequired);
  add("--model", arguments->model,
      "Its configuration: a preset, a YAML file, a config.json or a model directory", kRequired);
  add("--format", arguments->format,
      "megatron: mp_rank_… directories; torch_dist: Megatron's distributed checkpoint; dcp: "
      "torchtitan",
      CLI::IsMember({"auto", "megatron", "torch_dist", "dcp"}), kShowDefault);
  add("--tokenizer", arguments->tokenizer,
      "A directory whose tokenizer files are copied (default: none)");
  add("--optimizer", arguments->optimizer,
      "Also import the state of torchtitan's AdamW: run.from continues the output");
  add_output_options(*app, arguments->output, "the checkpoint");
  app->footer(
      "Dense models of the families llama, qwen2, qwen3 and gpt2. No code in the files is "
      "executed.\n\nExamples:\n"
      "  kintsugi model import megatron/checkpoints --model qwen3-8b --output model\n"
      "  kintsugi model import outputs/checkpoint/step-1000 --model llama.yaml --output model "
      "--tokenizer Llama-3.1-8B");
  app->callback([arguments] {
    ImportOptions options;
    for (const auto& [name, format] : {std::pair{"megatron", CheckpointFormat::Megatron},
                                       std::pair{"torch_dist", CheckpointFormat::TorchDist},
                                       std::pair{"dcp", CheckpointFormat::Dcp}})
      if (arguments->format == name) options.format = format;
    if (!arguments->tokenizer.empty()) {
      options.tokenizer = model_directory(arguments->tokenizer);
      load_tokenizer(options.tokenizer.string());  // UserError if there is none
    }
    TrainerState state;
    if (arguments->optimizer)
      options.trainer = [&](std::int64_t step, DType precision) {
        state.step = step;
        return state_to_json(state, precision);
      };
    const ModelConfig model = resolve_model(arguments->model);
    write_with_progress(arguments->output, [&](const ModelOutput& output) {
      options.output = output;
      return import_model(arguments->checkpoint, model, arguments->output.directory, options);
    });
    const std::string& name = arguments->output.directory;
    if (arguments->optimizer)
      log_info(
          "{}: a checkpoint of step {}, which run.from continues; the data position and the "
          "settings of AdamW are left out",
          name, state.step);
    else
      log_info("{}: the weights only; optimizer state and the data position are left out", name);
  });
}

void add_model_merge_adapter(CLI::App& model) {
  const auto arguments = std::make_shared<MergeAdapterArguments>();
  CLI::App* app = model.add_subcommand(
      "merge-adapter", "Add a LoRA adapter to its base model: the result needs no adapter");
  const AddOption add(*app);
  add("adapter", arguments->adapter,
      "A PEFT directory, or the checkpoint or run directory of a run with `adapter:`", kRequired);
  add("--base", arguments->base,
      "The base model (default: the directory that adapter_config.json names)");
  add("--allow-other-base", arguments->allow_other_base,
      "Merge although the adapter was trained on other weights than these");
  add_output_options(*app, arguments->output);
  app->footer(
      "Sums are computed in double precision and rounded once. The tokenizer is that of the "
      "adapter, if it has one.\n\nExamples:\n"
      "  kintsugi model merge-adapter runs/lora --output merged\n"
      "  kintsugi model merge-adapter adapter --base Llama-3.1-8B --output merged --dtype bf16");
  app->callback([arguments] {
    check_adapter(files_to_merge(arguments->adapter, arguments->base), arguments->allow_other_base);
    write_with_progress(arguments->output, [&](const ModelOutput& output) {
      return merge_adapter(arguments->adapter, arguments->base, arguments->output.directory,
                           output);
    });
  });
}

}  // namespace kintsugi
