#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/corpora/tokenize_pipeline.h"
#include "data/stores/store_info.h"
#include "data/stores/token_writer.h"

namespace kintsugi {

struct TokenizeCounts {
  std::int64_t documents = 0, tokens = 0, text_bytes = 0;
  std::int64_t empty_documents = 0, invalid_lines = 0;
};

// PREFIX.progress.json: the progress of a job, replaced atomically after each sync of its outputs.
// A killed job continues from it.
struct TokenizeJournal {
  std::string made_from;  // JSON of what determines the output: inputs, tokenizer, options
  InputPosition position;
  TokenizeCounts counts;
  std::string first_invalid;
  std::vector<StoreInfo::Shard> shards;  // finished, with temporary names
  TokenWriter::State writer;             // of the unfinished shard
  bool all_written = false;              // only the renaming is left
};

std::filesystem::path journal_path(const std::filesystem::path& prefix);
std::optional<TokenizeJournal> read_journal(const std::filesystem::path& prefix);
void write_journal(const std::filesystem::path& prefix, const TokenizeJournal& journal);

// Everything that determines the output; inputs count with their sizes and modification times.
struct TokenizeIdentity {
  std::vector<std::filesystem::path> inputs;
  std::string tokenizer;  // fingerprint
  std::optional<std::int32_t> end_of_document;
  DocumentFormat format;
  TokenType type;
  std::int64_t shard_bytes = 0;
};
std::string identity_json(const TokenizeIdentity& identity);
// Describes the first difference; "" if there is none.
std::string identity_difference(const std::string& before, const std::string& now);

}  // namespace kintsugi
