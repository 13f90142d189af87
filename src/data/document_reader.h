#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

struct DocumentFormat {
  std::string text_key = "text";  // of JSONL
  std::string prompt_key;         // of JSONL: text before it that carries no loss; empty: none
};

// The documents of one file, one after another: plain text (the file is one document) or JSONL,
// told apart by name (.jsonl, .ndjson, .json), either gzip or zstd compressed, told apart by
// content. Memory stays bounded: a long plain text comes in parts of about a mebibyte, cut where no
// tokenizer would join the sides (a line break before a letter).
class DocumentReader {
 public:
  DocumentReader(const std::filesystem::path& path, DocumentFormat format = {});
  ~DocumentReader();

  struct Part {
    std::string prompt, text;
    bool ends_document = true;
  };
  // False at the end. A malformed line or stream is a UserError that names file and line or byte.
  bool next(Part& part);

  std::uint64_t bytes_read() const;  // of the file as it lies, for progress
  std::uint64_t bytes_total() const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// What a line of JSONL holds; a UserError names file and line.
void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, DocumentReader::Part& part);

// Files for patterns ('corpus/*.jsonl.zst') and plain names, each once, sorted within a pattern. A
// pattern that matches nothing is a UserError, and so is a directory.
std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& patterns);

}  // namespace kintsugi
