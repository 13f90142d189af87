#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Whether a name contains * ? [ or {. The name of an existing file is not a pattern.
bool is_pattern(const std::string& name);
// Expands a pattern as a shell does, sorted; empty if nothing matches.
std::vector<std::filesystem::path> expand_pattern(const std::string& pattern);

// Expands patterns ('corpus/*.jsonl.zst') and plain names to files: each file once, sorted within a
// pattern. UserError for a pattern that matches nothing and for a directory.
std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& patterns);

// Reads the text of a file sequentially: plain, gzip (any number of members) or zstd (any number of
// frames), detected by content. Damaged data is a UserError with file and byte.
class TextStream {
 public:
  explicit TextStream(const std::filesystem::path& path);
  ~TextStream();
  TextStream(TextStream&&) noexcept;

  // Fills the buffer unless the text ends; returns 0 only at the end.
  std::size_t read(std::span<char> buffer);
  // Skips this many bytes of text; an uncompressed file is not read for it.
  void skip(std::uint64_t bytes);

  std::uint64_t bytes_read() const;  // of the file on disk, for progress
  std::uint64_t bytes_total() const;

  struct Source;   // the file
  struct Decoder;  // decompresses it

 private:
  std::unique_ptr<Source> source_;
  std::unique_ptr<Decoder> decoder_;
};

// Recognizes a format that is not text by the first bytes of a file (ten are enough): "a Parquet
// file"; null if none is recognized.
const char* other_format(std::string_view start);

}  // namespace kintsugi
