#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/example.h"

namespace kintsugi {

// What to do with an example of more than max_length tokens.
enum class TooLong : std::uint8_t { Drop, KeepStart, KeepEnd, Error };
TooLong parse_too_long(std::string_view name);  // drop, keep_start, keep_end, error

// Converts JSONL or Parquet of examples into a token store of one shard: a document for each
// example, with PREFIX.mask, for labels with PREFIX.labels. The output depends only on the inputs,
// the tokenizer and the options. The files get their final names at the very end; a job that is
// stopped or fails leaves nothing.
struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;     // PREFIX
  std::optional<ExampleKind> kind;  // none: by the keys of the first line
  ExampleFormat format;
  std::vector<std::string> labels;  // in the order of their ids; empty: those in the data
  std::int64_t max_length = 0;      // tokens of an example, or of both answers of a pair; 0: any
  TooLong too_long = TooLong::Drop;
  bool skip_bad = false;  // count bad lines, and damaged data, instead of stopping at the first
  bool overwrite = false;
  int threads = 0;                        // 0: one per core
  std::size_t batch_bytes = 1024 * 1024;  // of lines that are encoded at once
};

struct PrepareCounts {
  std::int64_t read = 0, written = 0;
  std::int64_t bad = 0, too_long = 0, untrained = 0, equal = 0;  // dropped
  std::int64_t truncated = 0;                                    // written in part
  std::int64_t tokens = 0, trained = 0, longest = 0, text_bytes = 0;
};

struct PrepareResult {
  bool stopped = false;  // by `progress`
  ExampleKind kind = ExampleKind::Chat;
  PrepareCounts counts;
  std::vector<std::string> first_bad;      // the errors of the first five bad lines
  std::vector<SkippedInput> skipped;       // damaged parts of the inputs
  std::vector<std::string> labels;         // Classification
  std::vector<std::int64_t> label_counts;  // examples written with each of them
};

// `progress` is called after each batch with the counts so far and the fraction of the input that
// was read; if it returns false, the job stops.
using PrepareProgress = std::function<bool(const PrepareCounts&, double)>;
PrepareResult prepare_examples(const Tokenizer& tokenizer, const PrepareOptions& options,
                               const PrepareProgress& progress);

}  // namespace kintsugi
