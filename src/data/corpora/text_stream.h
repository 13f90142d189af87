#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

namespace kintsugi {

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
