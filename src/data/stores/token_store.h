#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

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

// The data type of ids in a file. The values are the codes of Megatron's .idx files.
enum class TokenType : std::uint8_t { U8 = 1, I32 = 4, U16 = 8 };
std::size_t size_of(TokenType type);
std::string_view to_string(TokenType type);  // "uint16"
// U8 up to 256 ids, then U16 below 65,500 as in Megatron, else I32.
TokenType token_type_for(std::int64_t vocab_size);

// Documents with their tokens, memory-mapped: a Megatron .bin/.idx pair, or a text file whose bytes
// are the tokens (one document; none if it is empty). open() takes constant time: it checks the
// header, the sizes and the ends of the arrays. Each entry is checked when it is read (a UserError
// names it); `data verify` checks all. If a file is truncated meanwhile, reading it is a Failure.
//
// A *sequence* is Megatron's unit (one length in the .idx), a *document* has one or more sequences.
// Kintsugi writes one sequence per document, up to 2^30 tokens.
class TokenShard {
 public:
  // PREFIX of PREFIX.bin and PREFIX.idx.
  static TokenShard open(const std::filesystem::path& prefix);
  static TokenShard open_text(const std::filesystem::path& file);

  const std::string& name() const { return name_; }  // the prefix or the text file
  bool is_text() const { return !idx_.has_value(); }
  TokenType type() const { return type_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t sequences() const { return sequences_; }

  // The results are in tokens from the start of the shard, in 0 … tokens();
  // document_begin(documents()) and sequence_begin(sequences()) are tokens().
  std::int64_t document_begin(std::int64_t document) const;
  std::int64_t sequence_begin(std::int64_t sequence) const;
  std::int64_t sequence_length(std::int64_t sequence) const;
  // The first sequence of a document; document_sequence(documents()) is sequences().
  std::int64_t document_sequence(std::int64_t document) const;
  // The document that contains a token, by binary search.
  std::int64_t document_of(std::int64_t token) const;

  void read(std::int64_t first, std::span<std::int32_t> ids) const;
  // PREFIX.mask has one byte per token: 1 if the token counts in the loss. Without the file,
  // read_mask() returns ones.
  bool has_mask() const { return mask_.has_value(); }
  void read_mask(std::int64_t first, std::span<std::uint8_t> mask) const;
  // PREFIX.labels has an int32 per document: its class, counted from 0.
  bool has_labels() const { return labels_.has_value(); }
  std::int32_t label(std::int64_t document) const;  // UserError if it is negative

  // A hash of the sizes and the first and last 64 KiB of the files.
  std::uint64_t fingerprint() const;

 private:
  TokenShard() = default;
  void check_index(const std::filesystem::path& path);
  template <class T>
  T index_entry(std::int64_t array, std::int64_t entry) const;

  std::string name_;
  TokenType type_ = TokenType::U8;
  std::int64_t tokens_ = 0, documents_ = 0, sequences_ = 0;
  // Byte offsets of the arrays in the .idx.
  std::int64_t lengths_at_ = 0, pointers_at_ = 0, documents_at_ = 0;
  std::optional<MappedFile> bin_, idx_, mask_, labels_;
};

// Opens all shards of a store, sorted by name. `name` is a prefix (PREFIX.idx, or PREFIX-00000.idx
// and so on), a directory of pairs, a pattern ('corpus/fi-*'), or a text file (bytes as tokens).
// All shards must have the same type.
std::vector<TokenShard> open_token_store(const std::string& name);

// Reads PREFIX.json for each of these shards (null if there is none). Shards of the same store
// share one object.
std::vector<std::shared_ptr<const StoreInfo>> read_store_infos(std::span<const TokenShard> shards);

}  // namespace kintsugi
