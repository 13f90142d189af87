#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/corpora/record_reader.h"
#include "data/corpora/tokenize_pipeline.h"
#include "data/provenance/file_hashes.h"
#include "data/stores/token_store.h"
#include "data/stores/token_writer.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

struct TokenizeCounts {
  std::int64_t documents = 0, tokens = 0, text_bytes = 0;
  std::int64_t empty_documents = 0, invalid_lines = 0;
};

// PREFIX.progress.json: the progress of a job, replaced atomically after each sync of its outputs.
// A killed job continues from it.
struct TokenizeJournal {
  std::string made_from;  // JSON of what determines the output: inputs, tokenizer, options
  InputOffset position;
  TokenizeCounts counts;
  std::string first_invalid;
  std::vector<SkippedInput> skipped;
  std::vector<StoreInfo::Shard> shards;  // finished, with temporary names
  TokenWriter::State writer;             // of the unfinished shard
  bool all_written = false;              // only the renaming is left
  std::vector<InputFile> inputs = {};    // of older programs: none
};

std::filesystem::path journal_path(const std::filesystem::path& prefix);
std::optional<TokenizeJournal> read_journal(const std::filesystem::path& prefix);
void write_journal(const std::filesystem::path& prefix, const TokenizeJournal& journal);

// Tokenizes text into a token store: PREFIX.bin and PREFIX.idx (PREFIX-00000.bin and so on with
// shard_bytes), PREFIX.mask with a prompt key, and PREFIX.json. The output depends only on the
// inputs, the tokenizer and the options: not on the number of threads, nor on how often the job was
// killed and restarted. The files get their final names at the very end.
struct TokenizeOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;  // PREFIX
  DocumentFormat format;
  std::optional<std::int32_t> end_of_document;  // appended to each document
  bool skip_invalid = false;     // skip and count malformed lines and damaged parts of the inputs
  int threads = 0;               // 0: one per core
  std::int64_t shard_bytes = 0;  // a shard ends after the document that reaches this; 0: one shard
  bool overwrite = false;
  double save_every_s = 10;
  std::size_t batch_bytes = 256 * 1024;
};

struct TokenizeProgress {
  TokenizeCounts counts;
  std::uint64_t input_bytes = 0, input_bytes_total = 0;  // of the files on disk
  std::int64_t text_bytes_before = 0;                    // from earlier runs of this job
};

struct TokenizeResult {
  enum class State : std::uint8_t { Finished, Stopped, WasComplete };
  State state = State::Finished;
  TokenizeProgress progress;
  std::string first_invalid;  // the error of the first skipped line
  std::vector<SkippedInput> skipped;
  std::int64_t shards = 0;
};

// `progress` is called after each batch; if it returns false, the job saves and stops.
TokenizeResult tokenize(const Tokenizer& tokenizer, const TokenizeOptions& options,
                        const std::function<bool(const TokenizeProgress&)>& progress);

}  // namespace kintsugi
