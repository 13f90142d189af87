#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "data/corpora/input_files.h"
#include "data/corpora/tokenize_job.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

struct TokenizeCommand {
  std::vector<std::string> inputs;
  std::string tokenizer, output, end_of_document, shard_size;
  bool no_end_of_document = false;
  std::string save_every = "10s";
  TokenizeOptions options;
};

std::int32_t named_token(const Tokenizer& tokenizer, const std::string& name) {
  if (const auto id = tokenizer.token_id(name)) return *id;
  std::int32_t id = -1;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), id);
  if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size() && id >= 0 &&
      id < tokenizer.vocab_size())
    return id;
  user_error("--eod: '{}' is neither a token nor a token id of this tokenizer ({})", name,
             tokenizer.description());
}

std::optional<std::int32_t> end_of_document(const TokenizeCommand& command,
                                            const Tokenizer& tokenizer) {
  if (command.no_end_of_document) return std::nullopt;
  if (!command.end_of_document.empty()) return named_token(tokenizer, command.end_of_document);
  if (const auto id = tokenizer.end_of_document()) return id;
  if (tokenizer.vocab_size() <= 256) return std::nullopt;  // bytes: every id is text
  user_error(
      "the tokenizer {} has no end-of-document token: choose one with --eod TOKEN, or use none "
      "with --no-eod",
      command.tokenizer);
}

std::string figures(const TokenizeProgress& progress, double elapsed_s) {
  const TokenizeCounts& counts = progress.counts;
  const auto new_bytes = static_cast<double>(counts.text_bytes - progress.text_bytes_before);
  return fmt::format("{} documents  {} tokens  {:.3f} bytes/token  {:.1f} MB/s",
                     format_count(static_cast<double>(counts.documents)),
                     format_count(static_cast<double>(counts.tokens)),
                     static_cast<double>(counts.text_bytes) /
                         static_cast<double>(std::max<std::int64_t>(counts.tokens, 1)),
                     new_bytes / 1e6 / std::max(elapsed_s, 1e-3));
}

void report(const TokenizeCommand& command, const TokenizeResult& result, double elapsed_s) {
  const TokenizeCounts& counts = result.progress.counts;
  if (result.state == TokenizeResult::State::WasComplete) {
    log_info("{} is complete: {} documents, {} tokens; nothing to do (--overwrite starts over)",
             command.output, counts.documents, counts.tokens);
    return;
  }
  const bool stopped = result.state == TokenizeResult::State::Stopped;
  log_info("{}  {}", stopped ? "stopped" : "done", figures(result.progress, elapsed_s));
  if (counts.empty_documents > 0) log_info("{} empty documents skipped", counts.empty_documents);
  if (counts.invalid_lines > 0)
    log_warning("{} malformed lines skipped, the first: {}", counts.invalid_lines,
                result.first_invalid);
  warn_of_skipped(result.skipped);
  if (stopped) {
    log_info("{} received: progress is saved; run the same command again to continue",
             StopSignals::received());
    throw CLI::RuntimeError(exit_code::kStopped);
  }
  log_info("{}: {} documents, {} tokens in {}", command.output, counts.documents, counts.tokens,
           result.shards == 1 ? "one shard" : fmt::format("{} shards", result.shards));
}

void run_tokenize(TokenizeCommand& command) {
  const auto tokenizer = load_tokenizer(command.tokenizer);
  TokenizeOptions& options = command.options;
  options.inputs = expand_inputs(command.inputs);
  options.output = command.output;
  options.end_of_document = end_of_document(command, *tokenizer);
  if (!command.shard_size.empty()) options.shard_bytes = parse_bytes(command.shard_size);
  options.save_every_s = parse_duration_s(command.save_every);
  const StopSignals signals;
  std::optional<Progress> progress(std::in_place, "tokenize", 0, "bytes");
  bool continues = false;
  const TokenizeResult result = tokenize(*tokenizer, options, [&](const TokenizeProgress& now) {
    const auto done = static_cast<std::int64_t>(now.input_bytes);
    // A job that continues an earlier one: what that one read is not in the rate.
    if (!std::exchange(continues, true) && now.text_bytes_before > 0) progress->start_at(done);
    progress->set_note([&now, &progress] { return figures(now, progress->elapsed_s()); });
    progress->set(done, static_cast<std::int64_t>(now.input_bytes_total));
    progress->set_note({});  // `now` ends here
    return StopSignals::received() == nullptr;
  });
  const double elapsed_s = progress->elapsed_s();
  progress.reset();
  report(command, result, elapsed_s);
}

}  // namespace

void add_data_tokenize(CLI::App& data) {
  CLI::App* app = data.add_subcommand(
      "tokenize",
      "Tokenize text, JSONL, Parquet or web archives into a token store (Megatron .bin, .idx)");
  const AddOption add(*app);
  const auto command = std::make_shared<TokenizeCommand>();
  TokenizeOptions& options = command->options;
  add("--input", command->inputs,
      "files or 'patterns', perhaps compressed with gzip, zstd or xz; .jsonl, .ndjson and .json "
      "files have one document per line, .parquet files one per row, .warc and .wet files one per "
      "record, any other file is one document",
      kRequired);
  add("--tokenizer", command->tokenizer,
      "bytes, a tokenizer.json or its directory, a run directory, a SentencePiece .model, a "
      ".tiktoken",
      kRequired);
  add("--output", command->output, "PREFIX of PREFIX.bin, PREFIX.idx and PREFIX.json", kRequired);
  add("--text-key", options.format.text_key,
      "JSON key or column of the text; of Parquet also meta.text", kShowDefault);
  add("--prompt-key", options.format.prompt_key,
      "JSON key or column of a prompt that precedes the text and has no loss; writes PREFIX.mask");
  CLI::Option* none =
      add("--no-eod", command->no_end_of_document, "append no end-of-document token");
  add("--eod", command->end_of_document,
      "token or id appended to each document instead of the tokenizer's own")
      ->excludes(none);
  add("--skip-invalid", options.skip_invalid,
      "skip and report malformed lines and damaged parts of files instead of stopping");
  add("--threads", options.threads, "0: one per core", whole_number(between(0, 4096)),
      kShowDefault);
  add("--shard-size", command->shard_size,
      "write shards PREFIX-00000, PREFIX-00001, … of about this size, like 10GiB", TypeName{"SIZE"},
      byte_count(at_least(1)));
  add("--save-every", command->save_every,
      "save the progress this often; a crash loses at most this much work", TypeName{"TIME"},
      duration(at_least(0)), kShowDefault);
  add("--overwrite", options.overwrite,
      "start over: replace a store or unfinished job of this name");
  app->footer(
      "Example:\n"
      "  kintsugi data tokenize --input 'corpus/*.jsonl.zst' --tokenizer tokenizer.json --output "
      "tokens/fi\n"
      "To continue a stopped or killed job, run the same command again without --overwrite.");
  app->callback([command] { run_tokenize(*command); });
}

}  // namespace kintsugi
