#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/prompt_encoder.h"
#include "data/corpora/record_reader.h"
#include "data/stores/token_store.h"

namespace kintsugi {

// What is known of a document besides its tokens.
struct DocumentFacts {
  std::string id;                           // JSON
  std::optional<std::int64_t> number = {};  // the id, if it is a whole number
  std::optional<std::string> label = {};    // a name or a number; empty: the input has none
};

// A document of `kintsugi classify` or `kintsugi embed`.
struct InputDocument : DocumentFacts {
  std::string source;                     // for errors: "texts.jsonl, line 3"
  std::vector<std::int32_t> tokens = {};  // at least one
};

// Reads a line of JSONL: returns its text, and sets the facts that it has. `source` names the line
// in errors.
std::string parse_document_line(std::string_view line, const std::string& source,
                                const std::string& text_key, DocumentFacts& facts);

struct DocumentInputOptions {
  std::string path;             // "-": standard input
  std::string format = "auto";  // lines, jsonl, store
  std::string text_key = "text";
  std::string bos = "auto";
};

// Reads documents: each line of a text, each object of JSONL ("text", optionally "id" and "label"),
// or each document of a token store. A UserError names the file and the line.
class DocumentInput {
 public:
  // `directory` is the model, whose tokenizer is used.
  DocumentInput(const DocumentInputOptions& options, const std::filesystem::path& directory);
  ~DocumentInput();

  // Adds documents up to about `tokens` tokens, each cut to max_length. False: there are no more.
  bool read(std::vector<InputDocument>& documents, std::int64_t tokens, std::int64_t max_length);

  std::int64_t count() const { return count_; }          // documents that were read
  std::int64_t truncated() const { return truncated_; }  // of these
  double done() const;                                   // fraction of the input; negative: unknown

 private:
  bool next(InputDocument& document);
  bool next_line(std::string_view& line, std::uint64_t& number);
  void encode(std::string_view text, InputDocument& document);
  bool next_stored(InputDocument& document);
  void open_store(const std::string& path);

  DocumentInputOptions options_;
  std::int64_t vocab_size_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<PromptEncoder> encoder_;
  bool jsonl_ = false;
  std::string name_;
  // One of these is the input.
  std::optional<RecordReader> file_;
  std::string standard_input_;
  std::string_view unread_;
  std::uint64_t line_ = 0;
  std::vector<TokenShard> shards_;
  std::vector<std::string> store_labels_;
  std::size_t shard_ = 0;  // the next document
  std::int64_t document_ = 0;
  std::int64_t count_ = 0, truncated_ = 0;
};

}  // namespace kintsugi
