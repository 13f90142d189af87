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

#include "core/error.h"

namespace kintsugi {

// The data of a file are damaged at a position, which is a byte of the file or a row.
class DamagedInput : public UserError {
 public:
  DamagedInput(const std::string& message, std::string reason, std::uint64_t position)
      : UserError(message), reason_(std::move(reason)), position_(position) {}
  const std::string& reason() const { return reason_; }
  std::uint64_t position() const { return position_; }

 private:
  std::string reason_;
  std::uint64_t position_;
};

// What was left out because it could not be read: bytes of a file, rows, or one line.
struct SkippedInput {
  std::string file = {};
  std::string unit = "byte";
  std::uint64_t begin = 0, end = 0;  // the first one, and the one behind the last
  std::string reason = {};
  std::optional<std::int64_t> documents = {};  // that were lost; empty: unknown
};
std::string to_string(const SkippedInput& skipped);
// Warns of the first ones, and of how many there are.
void warn_of_skipped(const std::vector<SkippedInput>& skipped);

// Whether a name contains * ? [ or {. The name of an existing file is not a pattern.
bool is_pattern(const std::string& name);
// Expands a pattern as a shell does, sorted; empty if nothing matches.
std::vector<std::filesystem::path> expand_pattern(const std::string& pattern);

// Expands patterns ('corpus/*.jsonl.zst') and plain names to files: each file once, sorted within a
// pattern. UserError for a pattern that matches nothing and for a directory.
std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& patterns);

// Reads the text of a file sequentially: plain, gzip (any number of members), zstd (any number of
// frames) or xz (any number of streams), detected by content. Damaged data is a DamagedInput.
class TextStream {
 public:
  explicit TextStream(const std::filesystem::path& path);
  ~TextStream();
  TextStream(TextStream&&) noexcept;

  // Fills the buffer unless the text ends; returns 0 only at the end.
  std::size_t read(std::span<char> buffer);
  // Skips this many bytes of text, with `damage` over damaged data, too; an uncompressed file is
  // not read for it.
  void skip(std::uint64_t bytes, bool damage = false);
  // After a DamagedInput: goes on with the next member, frame or stream. False: there is none, and
  // the text ends. The text depends only on the file, however it is read.
  bool resume();
  // Goes on with the first member or frame that begins at this byte of the file or up to `within`
  // bytes behind it, in a plain text with the byte itself. False: there is none; seek elsewhere.
  bool seek(std::uint64_t byte, std::uint64_t within);

  std::uint64_t bytes_read() const;  // of the file on disk, for progress
  std::uint64_t bytes_total() const;

  struct Source;   // the file
  struct Decoder;  // decompresses it

 private:
  std::unique_ptr<Source> source_;
  std::unique_ptr<Decoder> decoder_;
  int resumed_ = 0;
};

// Recognizes a format that is not text by the first bytes of a file (ten are enough): "a Parquet
// file"; null if none is recognized.
const char* other_format(std::string_view start);

}  // namespace kintsugi
