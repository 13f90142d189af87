#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// PREFIX.json, which `data tokenize` writes for a store: how the store was made.
struct StoreInfo {
  struct Shard {
    std::string name;         // of its files, without directory and extension
    std::string bin, idx;     // XXH3 of the files, 16 hexadecimal digits
    std::string mask;         // XXH3; empty: no mask
    std::string labels = {};  // XXH3; empty: no labels
  };
  std::string tokenizer;              // fingerprint
  std::string tokenizer_description;  // "byte-level BPE, 50257 tokens"
  std::int64_t vocab_size = 0;
  std::optional<std::int32_t> end_of_document;  // the token appended to each document
  std::int64_t bytes = 0;                       // of text
  std::int64_t tokens = 0, documents = 0;
  std::vector<Shard> shards;
  // What the documents are: "" for text, or chat, prompt, preference, classification
  // (`data prepare-chat`).
  std::string kind = {};
  std::vector<std::string> labels = {};  // classification: the classes, in the order of their ids
  std::string chat_format = {};          // of conversations: chatml, …; empty: none, or several
  std::int64_t longest = 0;              // tokens of the longest document; 0: unknown
  std::string made_from;                 // JSON: inputs and options of the job; empty: unknown
};

// Reads PREFIX.json; `prefix` may also be a shard PREFIX-00000. Empty if there is no such file.
// UserError if the file has another format.
std::optional<StoreInfo> read_store_info(const std::filesystem::path& prefix);
void write_store_info(const std::filesystem::path& prefix, const StoreInfo& info);

// "corpus-00012", the name of a shard, gives "corpus"; any other name is returned unchanged.
std::filesystem::path store_of_shard(const std::filesystem::path& prefix);
// PREFIX-00012
std::filesystem::path shard_prefix(const std::filesystem::path& prefix, std::int64_t shard);
// Appends an ending such as ".idx"; the prefix may contain dots.
std::filesystem::path with_ending(std::filesystem::path prefix, const char* ending);

}  // namespace kintsugi
