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

// What a tokenization job has counted so far.
struct TokenizeCounts {
  std::int64_t documents = 0, tokens = 0, text_bytes = 0;
  std::int64_t empty_documents = 0, invalid_lines = 0;
};

// PREFIX.progress.json: how far a job has come, replaced whole after each sync of its outputs. With
// it a killed job goes on as if nothing had happened.
struct TokenizeJournal {
  std::string made_from;  // JSON of what decides the output: inputs, tokenizer, options
  InputPlace place;
  TokenizeCounts counts;
  std::string first_invalid;
  std::vector<StoreInfo::Shard> shards;  // finished, under their temporary names
  TokenWriter::State writer;             // of the one after them
  bool all_written = false;              // only the final names are missing
};

std::filesystem::path journal_path(const std::filesystem::path& prefix);
std::optional<TokenizeJournal> read_journal(const std::filesystem::path& prefix);
void write_journal(const std::filesystem::path& prefix, const TokenizeJournal& journal);

// The inputs with their sizes and times of change, and everything else that decides the output.
struct TokenizeIdentity {
  std::vector<std::filesystem::path> inputs;
  std::string tokenizer;  // fingerprint
  std::optional<std::int32_t> end_of_document;
  DocumentFormat format;
  TokenType type;
  std::int64_t shard_bytes = 0;
};
std::string identity_json(const TokenizeIdentity& identity);
// In what the two differ, in words; "" if in nothing.
std::string identity_difference(const std::string& before, const std::string& now);

}  // namespace kintsugi
