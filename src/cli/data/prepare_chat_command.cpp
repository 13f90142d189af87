#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "data/chat/prepare_job.h"
#include "data/corpora/input_files.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

struct PrepareCommand {
  std::vector<std::string> inputs;
  std::string tokenizer, kind, chat_template, too_long = "drop", loss = "assistant";
  PrepareOptions options;
};

// Of examples, whose number is known by the fraction of the input that was read.
void show_prepared(Progress& progress, const PrepareCounts& counts, double fraction) {
  const auto total = fraction > 0 ? static_cast<double>(counts.read) / std::min(fraction, 1.0) : 0;
  progress.set(counts.read, static_cast<std::int64_t>(total));
}

// Without these, a message could imitate the end of its turn.
void warn_about_marks(const PrepareCommand& command, const Tokenizer& tokenizer) {
  const ChatFormat* chat = command.options.format.chat;
  if (chat == nullptr || tokenizer.token_id(chat->end_of_turn)) return;
  log_warning(
      "{} has no token '{}': the marks of the chat format {} are written as plain text, which "
      "messages could imitate",
      command.tokenizer, chat->end_of_turn, chat->name);
}

void report_dropped(const PrepareCommand& command, const PrepareResult& result) {
  const PrepareCounts& counts = result.counts;
  const PrepareOptions& options = command.options;
  if (counts.too_long > 0)
    log_info("dropped: {} of more than {} tokens (--too-long drop)", counts.too_long,
             options.max_length);
  if (counts.untrained > 0)
    log_info("dropped: {} without a trained token, after truncation", counts.untrained);
  if (counts.equal > 0) log_info("dropped: {} whose answers are equal", counts.equal);
  if (counts.truncated > 0)
    log_info("truncated: {} of more than {} tokens (--too-long {})", counts.truncated,
             options.max_length, command.too_long);
  if (counts.bad > 0) log_warning("skipped {}:", format_number(counts.bad, "bad line"));
  for (const std::string& error : result.first_bad) log_warning("  {}", error);
  warn_of_skipped(result.skipped);
}

void report_prepared(const PrepareCommand& command, const PrepareResult& result) {
  const PrepareCounts& counts = result.counts;
  const PrepareOptions& options = command.options;
  if (result.stopped) failure("{} received: nothing was written", StopSignals::received());
  log_info("{}: kind {}, {} examples read, {} written", options.output.string(),
           to_string(result.kind), counts.read, counts.written);
  report_dropped(command, result);
  const bool labelled = result.kind == ExampleKind::Classification;
  log_info("{} tokens{}; of an example {} at most, {:.1f} on average", counts.tokens,
           labelled ? "" : fmt::format(", {} trained", counts.trained), counts.longest,
           static_cast<double>(counts.tokens) / static_cast<double>(counts.written));
  if (options.max_length == 0)
    log_info("no --max-length: set data.sequence_length to {} or more", counts.longest);
  for (std::size_t i = 0; i < result.labels.size(); ++i)
    log_info("  label {:>4}  {:<24} {:>10}", i, printable(result.labels[i]),
             result.label_counts[i]);
}

void run_prepare_chat(PrepareCommand& command) {
  const auto tokenizer = load_tokenizer(command.tokenizer);
  PrepareOptions& options = command.options;
  options.inputs = expand_inputs(command.inputs);
  if (!command.kind.empty()) options.kind = parse_example_kind(command.kind);
  options.too_long = parse_too_long(command.too_long);
  options.format = example_format(*tokenizer, command.chat_template);
  options.format.loss = parse_example_loss(command.loss);
  warn_about_marks(command, *tokenizer);
  const StopSignals signals;
  std::optional<Progress> progress(std::in_place, "prepare", 0, "examples");
  const PrepareResult result =
      prepare_examples(*tokenizer, options, [&](const PrepareCounts& counts, double fraction) {
        show_prepared(*progress, counts, fraction);
        return StopSignals::received() == nullptr;
      });
  progress.reset();
  report_prepared(command, result);
}

}  // namespace

void add_data_prepare_chat(CLI::App& data) {
  CLI::App* app = data.add_subcommand("prepare-chat",
                                      "Convert conversations, prompts, preferences or "
                                      "labelled texts into a token store for fine-tuning");
  const AddOption add(*app);
  const auto command = std::make_shared<PrepareCommand>();
  PrepareOptions& options = command->options;
  add("--input", command->inputs,
      "JSONL or Parquet files or 'patterns' (JSONL also in gzip, zstd or xz)", kRequired);
  add("--tokenizer", command->tokenizer,
      "bytes, a tokenizer.json or its directory, a run directory, a SentencePiece .model, a "
      ".tiktoken",
      kRequired);
  add("--output", options.output, "PREFIX of PREFIX.bin, PREFIX.idx, PREFIX.json, …", kRequired);
  add("--kind", command->kind,
      "chat, prompt, preference or classification (default: by the keys of the first line)");
  add("--template", command->chat_template,
      "chat format, like chatml or llama3 (default: the one of the tokenizer); prompts that are "
      "strings become messages too");
  add("--loss", command->loss,
      "which tokens are trained: assistant (all answers), completion (the last answer), all",
      kShowDefault);
  add("--max-length", options.max_length,
      "most tokens of an example; of a preference pair, of both answers with their prompts. 0: any",
      whole_number(between(0, 1 << 24)), kShowDefault);
  add("--too-long", command->too_long,
      "what to do with a longer example: drop, keep_start, keep_end, error", kShowDefault);
  add("--labels", options.labels,
      "classes in the order of their ids (default: those in the data, sorted)")
      ->delimiter(',');
  add("--skip-bad", options.skip_bad,
      "skip and report bad lines and damaged parts of files instead of stopping at the first one");
  add("--threads", options.threads, "0: one per core", whole_number(between(0, 4096)),
      kShowDefault);
  add("--overwrite", options.overwrite, "replace a store of this name");
  app->footer(
      "Each line is an object with messages; prompt and completion; instruction, input and output; "
      "prompt, chosen and rejected; or text and label.\n"
      "Examples:\n"
      "  kintsugi data prepare-chat --input chats.jsonl --tokenizer models/base --template chatml "
      "--max-length 2048 --output tokens/chats\n"
      "  kintsugi data prepare-chat --input reviews.jsonl --tokenizer models/base --labels "
      "negative,neutral,positive --output tokens/reviews");
  app->callback([command] { run_prepare_chat(*command); });
}

}  // namespace kintsugi
