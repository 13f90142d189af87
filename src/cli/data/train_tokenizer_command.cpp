#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/units.h"
#include "data/corpora/input_files.h"
#include "data/tokenizer_training/bpe_trainer.h"
#include "data/tokenizer_training/corpus_pre_tokens.h"

namespace kintsugi {
namespace {

struct TrainTokenizerArguments {
  std::vector<std::string> inputs, special = {"<|endoftext|>"};
  std::string vocab, output, eos, pre_tokenizer = "gpt2", text_key = "text", sample_bytes = "0";
  std::int64_t min_frequency = 2;
  int threads = 0;
  bool overwrite = false, skip_invalid = false;
};

// Created before the counting, which may take hours, so that errors are reported early. The
// destructor removes a directory that has stayed empty.
class OutputDirectory {
 public:
  OutputDirectory(std::filesystem::path path, OutputRule rule)
      : path_(std::move(path)), rule_(std::move(rule)) {
    std::error_code error;
    if (std::filesystem::exists(path_, error) && !std::filesystem::is_directory(path_, error))
      user_error("{} is a file; --output names a directory", path_.string());
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      if (std::filesystem::exists(std::filesystem::symlink_status(path_ / name, error)))
        check_output_file("--output", path_ / name, rule_);
    made_ = std::filesystem::create_directories(path_, error);
    if (error) failure("cannot create {}: {}", path_.string(), error.message());
    if (access(path_.c_str(), W_OK) != 0)
      failure("cannot write into {}: {}", path_.string(), std::strerror(errno));
  }
  ~OutputDirectory() {
    std::error_code ignored;
    if (!made_ || std::filesystem::exists(path_ / "tokenizer.json", ignored)) return;
    std::filesystem::remove(path_ / "tokenizer_config.json", ignored);
    std::filesystem::remove(path_, ignored);
  }
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    write_output_file("--output", path_ / name, rule_, content);
  }

 private:
  std::filesystem::path path_;
  OutputRule rule_;
  bool made_ = false;
};

BpeTrainerOptions trainer_options(const TrainTokenizerArguments& arguments) {
  BpeTrainerOptions options{.vocab_size = parse_count(arguments.vocab),
                            .min_frequency = arguments.min_frequency,
                            .special_tokens = arguments.special,
                            .progress = {}};
  check_bpe_options(options);
  const auto& special = options.special_tokens;
  if (!arguments.eos.empty() &&
      std::find(special.begin(), special.end(), arguments.eos) == special.end())
    user_error("--eos '{}' is not one of the special tokens; add --special '{}'", arguments.eos,
               arguments.eos);
  return options;
}

void train_tokenizer(const TrainTokenizerArguments& arguments) {
  BpeTrainerOptions options = trainer_options(arguments);
  const std::vector<std::filesystem::path> files = expand_inputs(arguments.inputs);
  const OutputDirectory output(arguments.output, {arguments.overwrite, files});
  std::optional<Progress> progress(std::in_place, "count", 0, "bytes");
  const CorpusPreTokens corpus =
      count_corpus_pre_tokens(files, {.pre_tokenizer = arguments.pre_tokenizer,
                                      .format = {.text_key = arguments.text_key, .prompt_key = ""},
                                      .threads = arguments.threads,
                                      .sample_bytes = parse_bytes(arguments.sample_bytes),
                                      .skip_invalid = arguments.skip_invalid,
                                      .progress = progress->callback()});
  if (corpus.invalid_lines > 0)
    log_warning("{} malformed lines skipped, one of them: {}", corpus.invalid_lines,
                corpus.first_invalid);
  warn_of_skipped(corpus.skipped);
  const std::vector<PreTokenCount> pre_tokens = corpus.counts();
  if (pre_tokens.empty())
    user_error("there is no text in {}{}", files.at(0).string(),
               files.size() > 1 ? fmt::format(" and {} other files", files.size() - 1) : "");
  const double counting_s = progress->elapsed_s();

  progress.emplace("merge", options.vocab_size, "tokens");
  options.progress = [&](std::int64_t tokens) { progress->set(tokens); };
  const TrainedBpe bpe = train_bpe(pre_tokens, options);
  const double merging_s = progress->elapsed_s();
  progress.reset();

  const std::string eos = arguments.eos.empty() ? options.special_tokens.at(0) : arguments.eos;
  for (const auto& file : trained_tokenizer_files(bpe, arguments.pre_tokenizer, eos))
    output.write(file.name, file.content);
  if (bpe.vocab_size() < options.vocab_size)
    log_warning("no pair is left that occurs {} times: {} tokens instead of {}",
                std::max<std::int64_t>(options.min_frequency, 1), bpe.vocab_size(),
                options.vocab_size);
  log_info(
      "{}: {} tokens from {} of text in {} file{}, {} distinct pre-tokens; {:.3f} bytes per token; "
      "counted in {}, merged in {}",
      output.path().string(), bpe.vocab_size(),
      format_bytes(static_cast<double>(corpus.text_bytes)), files.size(),
      files.size() == 1 ? "" : "s", pre_tokens.size(),
      static_cast<double>(bpe.corpus_bytes) / static_cast<double>(bpe.corpus_tokens),
      format_duration(counting_s), format_duration(merging_s));
}

}  // namespace

void add_data_train_tokenizer(CLI::App& data) {
  auto arguments = std::make_shared<TrainTokenizerArguments>();
  CLI::App* command =
      data.add_subcommand("train-tokenizer", "Learn a byte-level BPE vocabulary from text");
  const AddOption add(*command);
  add("--input", arguments->inputs,
      "Text, JSONL, Parquet or WARC files and patterns, plain or compressed with gzip, zstd or xz",
      kRequired);
  add("--vocab", arguments->vocab,
      "Vocabulary size (32k), including the 256 bytes and the special tokens", kRequired);
  add("--output", arguments->output, "Directory for tokenizer.json", kRequired);
  add("--pre-tokenizer", arguments->pre_tokenizer,
      "How text is split before merging: gpt2, llama3, qwen, bloom, o200k", kShowDefault);
  add("--special", arguments->special, "Special tokens; they get the first ids", kShowDefault);
  add("--eos", arguments->eos, "Special token that ends a document (default: the first one)");
  add("--min-frequency", arguments->min_frequency, "A pair must occur this often to become a token",
      whole_number(at_least(0)), kShowDefault);
  add("--text-key", arguments->text_key,
      "JSON key or column of the text; of Parquet also meta.text", kShowDefault);
  add("--skip-invalid", arguments->skip_invalid,
      "Skip and report malformed lines and damaged parts of files instead of stopping");
  add("--threads", arguments->threads, "0: one per core", whole_number(between(0, 4096)),
      kShowDefault);
  add("--sample-bytes", arguments->sample_bytes,
      "Train on about this much text (10GB), from the start of each file in proportion to its "
      "size; 0: all",
      TypeName{"SIZE"}, byte_count(at_least(0)), kShowDefault);
  add_overwrite_option(*command, arguments->overwrite);
  command->footer(
      "Example:\n  kintsugi data train-tokenizer --input 'corpus/*.jsonl.zst' --vocab 32000 "
      "--output tok/\nThe result does not depend on the number of threads. Hugging Face's "
      "libraries can load it.");
  command->callback([arguments] { train_tokenizer(*arguments); });
}

}  // namespace kintsugi
