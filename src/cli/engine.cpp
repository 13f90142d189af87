#include "cli/engine.h"

#include <CLI/CLI.hpp>
#include <optional>

#include "cli/options.h"
#include "comm/communicator.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "model/files/fingerprint.h"
#include "train/checkpoint/adapter_base.h"

namespace kintsugi {

void add_precision_options(CLI::App& command, EngineArguments& a) {
  command.add_option("--precision", a.precision, "fp32, bf16, fp16 or fp64")->capture_default_str();
  command.add_option("--threads", a.threads, "CPU threads of a rank; 0: its cores")
      ->transform(whole_number(between(0, 1024)))
      ->capture_default_str();
  command.add_flag("--allow-unused-weights", a.allow_unused_weights,
                   "Ignore tensors in the model's files that its config.json does not use");
}

void add_adapter_option(CLI::App& command, EngineArguments& a) {
  command
      .add_option("--adapter", a.adapter,
                  "A LoRA adapter of the model: a PEFT directory, or the checkpoint or run "
                  "directory of a run with `adapter:`")
      ->type_name("DIR");
  command.add_flag("--allow-other-base", a.allow_other_base,
                   "Use the adapter although it was trained on other weights than these");
}

void add_engine_options(CLI::App& command, EngineArguments& a) {
  const auto number = [&](const char* name, std::int64_t& value, Range range, const char* help) {
    command.add_option(name, value, help)->transform(whole_number(range))->capture_default_str();
  };
  number("--max-sequences", a.engine.max_sequences, between(0, 1 << 16),
         "Sequences computed at the same time; 0: 16 on a CPU, 64 on a GPU");
  number("--max-length", a.engine.max_length, between(0, 1 << 24),
         "Tokens of a sequence, prompt and text together; 0: what is needed, or the positions of "
         "the model");
  number("--cache-tokens", a.engine.cache_tokens, between(0, 1LL << 40),
         "Tokens in the key-value cache, of all sequences; 0: what they can need, or what fits");
  number("--step-tokens", a.engine.step_tokens, between(0, 1 << 20),
         "Tokens computed in one step, at most; 0: 256 on a CPU, 4096 on a GPU (deterministic: 64 "
         "and 256)");
  command.add_flag(
      "--deterministic,!--no-deterministic", a.engine.deterministic,
      fmt::format("No result depends on what else is computed at the same time; slower for few "
                  "sequences ({} by default)",
                  a.engine.deterministic ? "on" : "off"));
  command.add_flag("!--no-prefix-reuse", a.engine.reuse_prefixes,
                   "Do not keep what was computed for prompts that begin in the same way");
  add_adapter_option(command, a);
}

void check_adapter(const ModelFiles& files, bool allow) {
  if (files.adapter.empty()) return;
  const std::optional<OtherBase> other = other_base(files.adapter, files.model);
  if (!other) return;
  if (other->certain && !allow)
    user_error("{}: give the model that it was trained on, or --allow-other-base", other->text);
  log_warning("{}", other->text);
}

void check_same_model(Job& job, const ModelFiles& files) {
  if (job.world().size() == 1) return;
  Facts facts;
  const auto add = [&](const std::filesystem::path& directory, const char* stem, const char* config,
                       const std::string& what) {
    std::optional<SafetensorsModel> weights;
    std::string text;
    job.together([&] {
      weights.emplace(directory, stem);
      text = read_text_file(directory / config);
    });
    facts.emplace_back("the fingerprint of the weights of " + what,
                       shared_fingerprint(job.control(), *weights).text());
    facts.emplace_back(fmt::format("the fingerprint of {} of {}", config, what),
                       hex64(hash64(text)));
  };
  add(files.model, "model", "config.json", "the model");
  if (!files.adapter.empty()) add(files.adapter, kAdapterStem, kAdapterConfig, "the adapter");
  job.check_agreement(facts);
}

void with_engine(Job& job, const EngineArguments& a, const ModelFiles& files,
                 const EngineWork& work) {
  World& world = job.world();
  const int tensor = a.tensor == 0 ? world.size() : static_cast<int>(a.tensor);
  job.together([&] {
    if (world.size() % tensor != 0)
      user_error("{} ranks cannot form models of --tensor {} ranks", world.size(), tensor);
    if (world.rank() == 0) check_adapter(files, a.allow_other_base);
  });
  check_same_model(job, files);
  InferenceOptions options = a.engine;
  options.unused = unused_weights_of(a);
  options.precision = parse_precision(a.precision);
  options.adapter = files.adapter;
  const std::unique_ptr<Backend> backend =
      make_backend(DeviceChoice::Auto, threads_for(a.threads, world),
                   {.deterministic = options.deterministic}, world.local_rank());
  if (backend->host() == backend.get()) options.memory_shares = world.local_size();
  const auto copies = world.split("copies", world.rank() % tensor, world.rank());
  DeviceWorld devices;
  std::unique_ptr<Communicator> group;
  if (tensor > 1) {
    // Sums in rank order give the same bits in every run. The other ranks wait for the next
    // request as long as it takes.
    devices = make_device_world(world, *backend, {.deterministic = true, .timeout_s = 1e9},
                                [&job](const RankFailure& failure) { job.abort(failure); });
    group =
        (devices.gpus ? *devices.gpus : world).split("tensor", world.rank() / tensor, world.rank());
  } else {
    group = std::make_unique<LocalCommunicator>("tensor", backend.get());
  }
  std::optional<Progress> loading;
  if (world.rank() == 0) options.loading = loading.emplace("load model", 0, "bytes").callback();
  InferenceEngine engine(*backend, *group, files.model, options);
  loading.reset();
  if (world.rank() % tensor != 0) return engine.follow();
  work(engine, *copies);
}

}  // namespace kintsugi
