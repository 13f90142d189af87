#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/model/generation_options.h"
#include "cli/options.h"
#include "core/file.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "data/corpora/record_reader.h"
#include "serve/generation.h"
#include "serve/prompts.h"
#include "serve/text_output.h"

namespace kintsugi {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct GenerateArguments : GenerationArguments {
  std::vector<std::string> prompts, inputs;
  std::string token_ids, input_format = "auto", special_tokens = "parse";
  bool jsonl = false;
};

// A prompt with its tokens.
struct PromptTokens {
  Prompt prompt;
  std::vector<std::int32_t> tokens;
};

std::vector<Prompt> collect_prompts(const GenerateArguments& a) {
  std::vector<Prompt> prompts;
  for (const std::string& text : a.prompts) prompts.push_back({.source = "--prompt", .text = text});
  for (const std::string& input : a.inputs) {
    const bool standard = input == "-";
    const bool jsonl =
        a.input_format == "auto" ? RecordReader::is_jsonl(input) : a.input_format == "jsonl";
    const std::string name = standard ? "standard input" : input;
    const std::vector<Prompt> read =
        parse_prompts(read_text_file(standard ? "/dev/stdin" : input), name, jsonl);
    if (read.empty()) user_error("{} has no prompts", name);
    prompts.insert(prompts.end(), read.begin(), read.end());
  }
  return prompts;
}

// The chat format, if a prompt has messages.
const ChatFormat* format_for(const std::vector<Prompt>& prompts, const GenerateArguments& a,
                             const PromptSettings& settings) {
  if (std::any_of(prompts.begin(), prompts.end(), [](auto& p) { return !p.messages.empty(); }))
    return &choose_chat_format(a.chat_template, settings.chat_template, a.checkpoint);
  if (!a.chat_template.empty())
    user_error(
        "--chat-template needs prompts with \"messages\": give a JSONL file with --input, or use "
        "kintsugi chat");
  return nullptr;
}

std::vector<std::int32_t> encode_prompt(const Prompt& prompt, const ChatFormat* format,
                                        const PromptEncoder& encoder, SpecialTokens special) {
  if (prompt.messages.empty()) return encoder.encode(prompt.text, special);
  if (prompt.messages.back().role != "user")
    user_error("the last message has the role '{}': it must be user, whom the model answers",
               prompt.messages.back().role);
  return encoder.encode(chat_pieces(*format, prompt.messages, true), special);
}

// A line of --jsonl.
OrderedJson result_json(std::size_t index, const PromptTokens& input,
                        const GenerationResult& result, const Tokenizer* tokenizer) {
  OrderedJson json = {{"index", index}};
  if (tokenizer == nullptr)
    json["prompt_token_ids"] = input.tokens;
  else if (input.prompt.messages.empty())
    json["prompt"] = input.prompt.text;
  for (const ChatMessage& message : input.prompt.messages)
    json["messages"].push_back({{"role", message.role}, {"content", message.content}});
  if (tokenizer == nullptr) {
    json["token_ids"] = OrderedJson::array();
    for (const SampledToken& token : result.tokens) json["token_ids"].push_back(token.id);
  } else {
    json["text"] = result.text;
  }
  json["prompt_tokens"] = input.tokens.size();
  json["completion_tokens"] = result.tokens.size();
  json["finish_reason"] = to_string(result.finish);
  return json;
}

// One entry per generated token, with the most likely tokens at its position.
OrderedJson logprobs_json(const std::vector<SampledToken>& tokens, const PromptTokens& input,
                          const Tokenizer* tokenizer) {
  const auto entry = [&](std::int32_t id, double logprob) {
    OrderedJson json = {{"id", id}};
    if (tokenizer != nullptr) json["token"] = TextOutput(tokenizer, input.tokens).add(id);
    json["logprob"] = logprob;
    return json;
  };
  OrderedJson list = OrderedJson::array();
  for (const SampledToken& token : tokens) {
    OrderedJson json = entry(token.id, *token.logprob);
    json["top"] = OrderedJson::array();
    for (const TokenLogprob& top : token.top) json["top"].push_back(entry(top.id, top.logprob));
    list.push_back(std::move(json));
  }
  return list;
}

// Generates all prompts, several at the same time, and prints the results in their order.
class GenerateJob {
 public:
  explicit GenerateJob(GenerateArguments& arguments) : a_(arguments) {}

  void run() {
    Job job;
    job.run([&] {
      job.together([&] {
        if (job.world().rank() == 0) prepare();  // which has the standard input
      });
      share_sizes(job);
      with_engine(job, a_.engine, files_, [&](InferenceEngine& engine, Communicator&) {
        texts_.resize(inputs_.size());
        for (std::size_t i = 0; i < inputs_.size(); ++i) submit(engine, i);
        while (is_read_ && engine.step())
          if (done_ < inputs_.size()) report_progress();
        report_progress();
      });
    });
  }

 private:
  // Reads, encodes and checks all prompts before anything is loaded.
  void prepare() {
    files_ = find_model(a_.checkpoint, a_.engine.adapter);
    a_.checkpoint = files_.name().string();
    const std::vector<Prompt> prompts = collect_prompts(a_);
    if (prompts.empty() && a_.token_ids.empty())
      user_error("give a --prompt, an --input or --token-ids");
    if (!a_.token_ids.empty() && !(a_.stop.empty() && a_.chat_template.empty()))
      user_error("--token-ids has no text: --stop and --chat-template need a --prompt or --input");
    StopStrings{a_.stop};  // checks them
    if (prompts.empty())
      inputs_.push_back({{.source = "--token-ids"}, parse_token_ids(a_.token_ids)});
    else
      encode(prompts);
    const ModelConfig config = read_hf_config(files_.model / "config.json");
    for (const PromptTokens& input : inputs_)
      with_source(input.prompt,
                  [&] { InferenceEngine::check_prompt(config, input.tokens, a_.max_tokens); });
  }

  // All ranks make an engine of the size that the prompts of rank 0 need.
  void share_sizes(Job& job) {
    InferenceOptions& engine = a_.engine.engine;
    std::size_t longest = 0;
    for (const PromptTokens& input : inputs_) longest = std::max(longest, input.tokens.size());
    if (engine.max_length == 0)
      engine.max_length = static_cast<std::int64_t>(longest) + a_.max_tokens;
    const std::int64_t prompts = std::max<std::int64_t>(1, std::ssize(inputs_));
    if (prompts < (engine.max_sequences == 0 ? 16 : engine.max_sequences))
      engine.max_sequences = prompts;
    const OrderedJson sizes = {files_.model.string(), files_.adapter.string(), engine.max_length,
                               engine.max_sequences};
    const OrderedJson shared = OrderedJson::parse(job.broadcast_text(sizes.dump()));
    files_ = {shared[0].get<std::string>(), shared[1].get<std::string>()};
    engine.max_length = shared[2];
    engine.max_sequences = shared[3];
  }

  void encode(const std::vector<Prompt>& prompts) {
    text_.emplace(load_model_text(files_, a_));
    format_ = format_for(prompts, a_, text_->settings);
    const SpecialTokens special =
        a_.special_tokens == "text" ? SpecialTokens::AsText : SpecialTokens::Honoured;
    for (const Prompt& prompt : prompts)
      with_source(prompt, [&] {
        inputs_.push_back({prompt, encode_prompt(prompt, format_, text_->encoder, special)});
      });
  }

  // Errors name the file and the line of a prompt.
  template <class Work>
  static void with_source(const Prompt& prompt, Work&& work) {
    try {
      work();
    } catch (const UserError& error) {
      user_error("{}: {}", prompt.source, error.what());
    }
  }

  const Tokenizer* tokenizer() const { return text_ ? text_->tokenizer.get() : nullptr; }

  void submit(InferenceEngine& engine, std::size_t index) {
    const PromptTokens& input = inputs_[index];
    GenerationRequest request{.prompt = input.tokens,
                              .max_tokens = a_.max_tokens,
                              .sampling = a_.sampling,
                              .stop = a_.stop};
    if (!input.prompt.messages.empty()) stop_at_end_of_turn(request, *format_, *tokenizer());
    TextGeneration text = make_text_generation(
        tokenizer(), std::move(request),
        [this, index](std::string_view piece) {
          texts_[index].unprinted += piece;
          if (!a_.jsonl && index == printed_) is_read_ = print_text(index);
          return is_read_;
        },
        [this, index](GenerationResult result) {
          if (result.finish == FinishReason::Failed)
            failure("{}: {}", input_name(index), result.error);
          tokens_ += result.tokens.size();
          ++done_;
          texts_[index].result = std::move(result);
          while (is_read_ && printed_ < texts_.size() && texts_[printed_].result) print_result();
        });
    engine.submit(std::move(text.request), std::move(text.listener));
  }
  const std::string& input_name(std::size_t index) const { return inputs_[index].prompt.source; }

  // Prints what is left of the next result in order.
  void print_result() {
    const std::size_t index = printed_;
    is_read_ = a_.jsonl ? print_json(index) : print_text(index) && printer_.end_line();
    texts_[index] = {};
    ++printed_;
  }

  // The prompt and its continuation, or only the answer to messages. The prompt is printed with the
  // first token: after an error standard output stays empty.
  bool print_text(std::size_t index) {
    Text& text = texts_[index];
    std::string piece = std::exchange(text.unprinted, {});
    if (!std::exchange(text.begun, true))
      piece = (index > 0 ? "\n" : "") + inputs_[index].prompt.text + piece;
    return printer_.print(piece);
  }

  bool print_json(std::size_t index) {
    const GenerationResult& result = *texts_[index].result;
    OrderedJson json = result_json(index, inputs_[index], result, tokenizer());
    if (a_.sampling.logprobs >= 0)
      json["logprobs"] = logprobs_json(result.tokens, inputs_[index], tokenizer());
    const std::string line =
        json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    std::fwrite(line.data(), 1, line.size(), stdout);
    return std::fflush(stdout) == 0;
  }

  // For many prompts, on standard error and never as a live line: texts are printed meanwhile.
  static ProgressOutput progress_output() {
    ProgressOutput output = terminal_progress();
    output.live = false;
    output.show = [](const std::string& line) { log_note("{}", line); };
    return output;
  }
  void report_progress() {
    if (inputs_.size() == 1) return;
    progress_.set(static_cast<std::int64_t>(done_), std::ssize(inputs_));
    if (done_ < inputs_.size()) return;
    const double elapsed_s = progress_.elapsed_s();
    log_note("{}/{} prompts, {} tokens in {} ({:.1f} tokens/s)", done_, inputs_.size(), tokens_,
             format_duration(elapsed_s), static_cast<double>(tokens_) / std::max(elapsed_s, 1e-9));
  }

  GenerateArguments& a_;
  ModelFiles files_;
  std::optional<ModelText> text_;       // without --token-ids
  const ChatFormat* format_ = nullptr;  // if a prompt has messages
  struct Text {
    std::string unprinted;
    bool begun = false;
    std::optional<GenerationResult> result;
  };
  std::vector<PromptTokens> inputs_;
  std::vector<Text> texts_;  // by input
  std::size_t printed_ = 0;  // results, in order
  std::size_t done_ = 0;     // results, in any order
  std::size_t tokens_ = 0;   // generated
  bool is_read_ = true;      // false: the reader has closed the pipe
  TextPrinter printer_;
  Progress progress_{"generate", 0, "prompts", progress_output()};
};

void add_prompt_options(CLI::App& command, GenerateArguments& a) {
  const AddOption add(command);
  CLI::Option* prompt =
      add("--prompt", a.prompts, "The text to continue; may be given several times", kRepeatable);
  CLI::Option* input = add("--input", a.inputs,
                           "A file of prompts, '-' for standard input; may be given several times",
                           TypeName{"FILE"}, kRepeatable);
  add("--input-format", a.input_format,
      "lines (one prompt per line), jsonl ({\"prompt\": …} or {\"messages\": …}) or auto (by the "
      "name: .jsonl)",
      CLI::IsMember({"auto", "lines", "jsonl"}), kShowDefault)
      ->needs(input);
  CLI::Option* ids = add("--token-ids", a.token_ids, "The prompt as token ids; prints token ids");
  ids->excludes(prompt)->excludes(input);
  add("--special-tokens", a.special_tokens,
      "Names of special tokens in a prompt, or in the content of messages: parse (become the "
      "token) or text",
      CLI::IsMember({"parse", "text"}), kShowDefault);
  CLI::Option* jsonl =
      add("--jsonl", a.jsonl, "Print a JSON object per prompt: text, token counts, finish_reason");
  add("--logprobs", a.sampling.logprobs,
      "With --jsonl: add the log-probability of each token, and of this many of the most likely "
      "ones",
      whole_number(between(0, 1000)))
      ->needs(jsonl);
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Continue texts with a trained model");
  add_prompt_options(*command, *a);
  add_generation_options(*command, *a);
  add_engine_options(*command, a->engine);
  command->footer(
      "Examples:\n"
      "  kintsugi generate --checkpoint runs/demo --prompt 'And God said'\n"
      "  kintsugi generate --checkpoint runs/demo --input prompts.txt --stop END --jsonl\n"
      "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}' |\n"
      "    kintsugi generate --checkpoint DIR --input - --input-format jsonl --jsonl --logprobs 5");
  command->callback([a] { GenerateJob(*a).run(); });
}

}  // namespace kintsugi
