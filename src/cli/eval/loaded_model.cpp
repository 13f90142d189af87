#include "cli/eval/loaded_model.h"

#include <CLI/CLI.hpp>

#include "cli/options.h"
#include "cli/token_input.h"
#include "comm/local_communicator.h"
#include "core/log.h"
#include "eval/run/engine_model.h"
#include "eval/run/replicated_model.h"
#include "serve/prompt_encoder.h"

namespace kintsugi {
namespace {

InferenceOptions inference_options(const EngineArguments& a) {
  return {.precision = parse_precision(a.precision),
          .max_length = a.max_length,
          .max_sequences = a.batch,
          .step_tokens = std::max(a.step_tokens, a.batch),
          .cache_tokens = a.cache_tokens,
          .deterministic = !a.fast};
}

}  // namespace

void add_engine_options(CLI::App& command, EngineArguments& a) {
  command.add_option("--precision", a.precision, "fp32, bf16, fp16 or fp64")->capture_default_str();
  command.add_option("--threads", a.threads, "CPU threads of a rank; 0: its cores")
      ->transform(whole_number(between(0, 1024)))
      ->capture_default_str();
  command.add_option("--batch", a.batch, "Sequences that are computed at the same time")
      ->transform(whole_number(between(1, 1 << 16)))
      ->capture_default_str();
  command
      .add_option("--max-length", a.max_length,
                  "Tokens of a sequence, at most; 0: the positions of the model")
      ->transform(whole_number(between(0, 1 << 24)))
      ->capture_default_str();
  command.add_option("--step-tokens", a.step_tokens, "Tokens of one step, at most")
      ->transform(whole_number(between(1, 1 << 24)))
      ->capture_default_str();
  command
      .add_option("--cache-tokens", a.cache_tokens,
                  "Tokens of the key-value cache; 0: what the sequences can need, or memory")
      ->transform(whole_number(between(0, 1LL << 40)))
      ->capture_default_str();
  command
      .add_option("--tensor", a.tensor,
                  "Ranks of one model (tensor parallelism); the ranks / this copies of the model "
                  "share the work")
      ->transform(whole_number(between(1, 1 << 20)))
      ->capture_default_str();
  command.add_flag("--fast", a.fast,
                   "Compute steps with few sequences faster. Results then depend on --batch and "
                   "the number of ranks, up to rounding");
}

void with_model(Job& job, const EngineArguments& a, const std::filesystem::path& directory,
                const ModelWork& work) {
  World& world = job.world();
  const auto tensor = static_cast<int>(a.tensor);
  job.together([&] {
    if (world.size() % tensor != 0)
      user_error("{} ranks cannot form models of --tensor {} ranks", world.size(), tensor);
  });
  const std::unique_ptr<Backend> backend =
      make_backend(DeviceChoice::Auto, threads_for(a.threads, world), {}, world.local_rank());
  // Reductions in rank order: the same bits in every run.
  DeviceWorld devices;
  std::unique_ptr<Communicator> model_group;
  const auto replicas = world.split("replicas", world.rank() % tensor, world.rank());
  if (tensor > 1) {
    devices = make_device_world(world, *backend, {.deterministic = true},
                                [&job](const std::string& text) { job.abort(text); });
    model_group =
        (devices.gpus ? *devices.gpus : world).split("tensor", world.rank() / tensor, world.rank());
  } else {
    model_group = std::make_unique<LocalCommunicator>("tensor", backend.get());
  }
  InferenceEngine engine(*backend, *model_group, directory, inference_options(a));
  if (world.rank() % tensor != 0) return engine.follow();
  const std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(directory);
  const PromptSettings settings =
      read_prompt_settings(tokenizer->files(engine.config().max_positions));
  EngineModel own(engine, *tokenizer, prefix_token_of(*tokenizer, settings.bos, engine.config()));
  ReplicatedModel shared(own, *replicas);
  work(shared, *tokenizer);
}

}  // namespace kintsugi
