#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// The JSON beside a store that `data tokenize` writes (PREFIX.json): what made it.
struct StoreInfo {
  struct Shard {
    std::string name;      // of its files, without the folder and the ending
    std::string bin, idx;  // XXH3 of the files, 16 hexadecimal digits
    std::string mask;      // empty: it has none
  };
  std::string tokenizer;              // its fingerprint
  std::string tokenizer_description;  // "byte-level BPE, 50257 tokens"
  std::int64_t vocab_size = 0;
  std::optional<std::int32_t> end_of_document;  // the token appended to each document
  std::int64_t bytes = 0;                       // of text
  std::int64_t tokens = 0, documents = 0;
  std::vector<Shard> shards;
  std::string made_from;  // JSON: inputs and options of the job; empty: unknown
};

// Of PREFIX, or of one of its shards PREFIX-00000. A file that is not what `data tokenize` writes
// is a UserError; none is no error.
std::optional<StoreInfo> read_store_info(const std::filesystem::path& prefix);
void write_store_info(const std::filesystem::path& prefix, const StoreInfo& info);

// "corpus" of "corpus-00012", a shard's name; any other name as it is.
std::filesystem::path store_of_shard(const std::filesystem::path& prefix);
// PREFIX-00012
std::filesystem::path shard_prefix(const std::filesystem::path& prefix, std::int64_t shard);
// PREFIX.idx and the like: also where the prefix holds a dot.
std::filesystem::path with_ending(std::filesystem::path prefix, const char* ending);

}  // namespace kintsugi
