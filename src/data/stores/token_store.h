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
#include "data/stores/store_info.h"

namespace kintsugi {

// How ids lie in a file. The values are the codes of Megatron's .idx files.
enum class TokenType : std::uint8_t { U8 = 1, I32 = 4, U16 = 8 };
std::size_t size_of(TokenType type);
std::string_view to_string(TokenType type);  // "uint16"
// u8 up to 256 ids, then u16 below 65,500 as Megatron chooses.
TokenType token_type_for(std::int64_t vocab_size);

// A run of documents with their tokens, mapped into memory: a Megatron .bin/.idx pair, or a text
// file whose bytes are its tokens (one document; none when it is empty). Opening costs the same for
// any size: header, sizes and the ends of the arrays are checked then, each entry when it is asked
// for (a UserError names it), all of them by `data verify`. Files that are shortened meanwhile are
// a Failure of whatever reads them.
//
// A *sequence* is Megatron's unit (one .idx length), a *document* one or more of them; files of
// ours have one sequence per document, up to 2^30 tokens.
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

  // Places are counted in tokens from the start of the shard; [documents()] is the end. Every
  // result lies in 0 … tokens().
  std::int64_t document_begin(std::int64_t document) const;
  std::int64_t sequence_begin(std::int64_t sequence) const;
  std::int64_t sequence_length(std::int64_t sequence) const;
  // The first sequence of a document; [documents()] is sequences().
  std::int64_t document_sequence(std::int64_t document) const;
  // The document that holds a token, by bisection.
  std::int64_t document_of(std::int64_t token) const;

  void read(std::int64_t first, std::span<std::int32_t> ids) const;
  // PREFIX.mask, one byte per token: whether the token counts in the loss. Without one all do, and
  // read_mask() fills in ones.
  bool has_mask() const { return mask_.has_value(); }
  void read_mask(std::int64_t first, std::span<std::uint8_t> counts) const;

  // Differs for different content with near certainty; reads the ends of the files only.
  std::uint64_t fingerprint() const;

 private:
  TokenShard() = default;
  void check_index(const std::filesystem::path& path);
  template <class T>
  T index_entry(std::int64_t array, std::int64_t entry) const;

  std::string name_;
  TokenType type_ = TokenType::U8;
  std::int64_t tokens_ = 0, documents_ = 0, sequences_ = 0;
  // Where the arrays of the .idx begin, in bytes.
  std::int64_t lengths_at_ = 0, pointers_at_ = 0, documents_at_ = 0;
  std::optional<MappedFile> bin_, idx_, mask_;
};

// All shards behind one name, in the order of their names: a prefix (PREFIX.idx, or
// PREFIX-00000.idx and so on), a directory of pairs, a pattern ('corpus/fi-*'), or a text file
// (bytes as tokens). Shards of one store have one type.
std::vector<TokenShard> open_token_store(const std::string& name);

// What PREFIX.json says about each of these shards (null: there is none). Shards of one store share
// one object.
std::vector<std::shared_ptr<const StoreInfo>> read_store_infos(std::span<const TokenShard> shards);

}  // namespace kintsugi
