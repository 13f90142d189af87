#include "cli/engine.h"

#include <charconv>
#include <optional>

#include "cli/options.h"
#include "comm/communicator.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "data/chat/prompt_encoder.h"
#include "eval/run/engine_model.h"
#include "eval/run/replicated_model.h"
#include "model/adapter/peft_config.h"
#include "model/files/fingerprint.h"
#include "train/checkpoint/adapter_base.h"

namespace kintsugi {

std::vector<std::int32_t> parse_token_ids(std::string_view text) {
  std::vector<std::int32_t> ids;
  const char *next = text.data(), *end = text.data() + text.size();
  while (next != end) {
    if (*next == ' ' || *next == ',' || *next == '\n' || *next == '\t') {
      ++next;
      continue;
    }
    std::int32_t id = 0;
    const auto result = std::from_chars(next, end, id);
    if (result.ec != std::errc())
      user_error("'{}' is not a list of token ids: give integers separated by spaces or commas",
                 text);
    ids.push_back(id);
    next = result.ptr;
  }
  return ids;
}

std::unique_ptr<Tokenizer> load_model_tokenizer(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory / "config.json") && !is_adapter_directory(directory))
    user_error("{} is not a model directory: it has no config.json", directory.string());
  if (!std::filesystem::exists(directory / "tokenizer.json") &&
      !std::filesystem::exists(directory / "tokenizer.model"))
    user_error("{} has no tokenizer (tokenizer.json or tokenizer.model): give --token-ids",
               directory.string());
  return load_tokenizer(directory.string());
}

void add_checkpoint_option(CLI::App& command, std::string& checkpoint) {
  const AddOption add(command);
  add("--checkpoint", checkpoint,
      "A checkpoint, a run directory (its latest checkpoint), or a Hugging Face model directory of "
      "a supported family",
      kRequired);
}

void add_bos_option(CLI::App& command, std::string& bos, const std::string& texts) {
  const AddOption add(command);
  add("--bos", bos,
      fmt::format("Begin {} with the beginning-of-text token: auto (as the tokenizer's files say), "
                  "yes or no",
                  texts),
      CLI::IsMember({"auto", "yes", "no"}), kShowDefault);
}

void add_precision_options(CLI::App& command, EngineArguments& a) {
  const AddOption add(command);
  add("--precision", a.precision, "fp32, bf16, fp16 or fp64", kShowDefault);
  add("--threads", a.threads, "CPU threads of a rank; 0: its cores", whole_number(between(0, 1024)),
      kShowDefault);
  add("--allow-unused-weights", a.allow_unused_weights,
      "Ignore tensors in the model's files that its config.json does not use");
}

void add_adapter_option(CLI::App& command, EngineArguments& a) {
  const AddOption add(command);
  add("--adapter", a.adapter,
      "A LoRA adapter of the model: a PEFT directory, or the checkpoint or run directory of a run "
      "with `adapter:`",
      TypeName{"DIR"});
  add("--allow-other-base", a.allow_other_base,
      "Use the adapter although it was trained on other weights than these");
}

void add_engine_options(CLI::App& command, EngineArguments& a) {
  const AddOption add(command);
  add("--max-sequences", a.engine.max_sequences,
      "Sequences computed at the same time; 0: 16 on a CPU, 64 on a GPU",
      whole_number(between(0, 1 << 16)), kShowDefault);
  add("--max-length", a.engine.max_length,
      "Tokens of a sequence, prompt and text together; 0: what is needed, or the positions of "
      "the model",
      whole_number(between(0, 1 << 24)), kShowDefault);
  add("--cache-tokens", a.engine.cache_tokens,
      "Tokens in the key-value cache, of all sequences; 0: what they can need, or what fits",
      whole_number(between(0, 1LL << 40)), kShowDefault);
  add("--step-tokens", a.engine.step_tokens,
      "Tokens computed in one step, at most; 0: 256 on a CPU, 4096 on a GPU (deterministic: 64 "
      "and 256)",
      whole_number(between(0, 1 << 20)), kShowDefault);
  add("--deterministic,!--no-deterministic", a.engine.deterministic,
      fmt::format("No result depends on what else is computed at the same time; slower for few "
                  "sequences ({} by default)",
                  a.engine.deterministic ? "on" : "off"));
  add("!--no-prefix-reuse", a.engine.reuse_prefixes,
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

void add_eval_engine_options(CLI::App& command, EngineArguments& a) {
  const AddOption add(command);
  a.tensor = 1;
  a.engine.deterministic = true;
  add_precision_options(command, a);
  add_engine_options(command, a);
  add("--tensor", a.tensor,
      "Ranks of one model (tensor parallelism); the ranks / this copies of the model share the "
      "work",
      whole_number(between(1, 1 << 20)), kShowDefault);
}

void with_engine_alone(const EngineArguments& a, const ModelFiles& files, std::int64_t max_length,
                       const std::function<void(InferenceEngine&)>& work) {
  const std::unique_ptr<Backend> backend = make_backend(DeviceChoice::Auto, a.threads);
  LocalCommunicator alone("tensor", backend.get());
  const DType precision = parse_precision(a.precision);
  std::optional<Progress> loading(std::in_place, "load model", 0, "bytes");
  InferenceEngine engine(*backend, alone, files.model,
                         {.precision = precision,
                          .max_length = max_length,
                          .max_sequences = 1,
                          .adapter = files.adapter,
                          .unused = unused_weights_of(a),
                          .loading = loading->callback()});
  loading.reset();
  work(engine);
}

void with_model(Job& job, const EngineArguments& a, const ModelFiles& files,
                const ModelWork& work) {
  with_engine(job, a, files, [&](InferenceEngine& engine, Communicator& copies) {
    const std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(files.tokenizer());
    const PromptSettings settings =
        read_prompt_settings(tokenizer->files(engine.config().max_positions));
    EngineModel own(engine, *tokenizer, prefix_token_of(*tokenizer, settings.bos, engine.config()));
    ReplicatedModel shared(own, copies);
    work(shared, *tokenizer);
  });
}

}  // namespace kintsugi
