#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

namespace kintsugi {

// The text of a file front to back: as it lies, or out of gzip (any number of members) or zstd (any
// number of frames), told apart by content. Damage is a UserError with file and byte.
class TextStream {
 public:
  explicit TextStream(const std::filesystem::path& path);
  ~TextStream();
  TextStream(TextStream&&) noexcept;

  // Fills the buffer as far as the text goes; 0 only at the end.
  std::size_t read(std::span<char> buffer);
  // Goes on this many bytes of text; at once where nothing is compressed.
  void skip(std::uint64_t bytes);

  std::uint64_t bytes_read() const;  // of the file as it lies, for progress
  std::uint64_t bytes_total() const;

  struct Source;   // the file
  struct Decoder;  // what its bytes mean

 private:
  std::unique_ptr<Source> source_;
  std::unique_ptr<Decoder> decoder_;
};

// What a file with these first bytes (ten will do) is that would make no sense as text: "a Parquet
// file"; null: nothing that is known.
const char* other_format(std::string_view start);

}  // namespace kintsugi
