#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpora/text_stream.h"

namespace kintsugi {

// A unit of a file that can be processed independently and in bounded memory: a line of JSONL, or a
// segment of plain text. The segment boundaries depend only on the text.
struct Record {
  std::string_view bytes;  // valid until the next call
  std::uint64_t line = 0;  // line number in the file, from 1
  bool ends_document = true;
  bool after_break = false;  // of a segment: the text before it ends with a line break
};

// The position of a reader in a file: everything before it has been returned.
struct RecordPosition {
  std::uint64_t text_bytes = 0;  // of decompressed text
  std::uint64_t line = 0;        // lines before it
};

class RecordReader {
 public:
  // A segment of plain text ends at the last safe boundary within `segment` bytes, else at the
  // first one after them, else between two characters at `longest_segment`.
  struct Sizes {
    std::size_t segment = std::size_t{1} << 20;
    std::size_t longest_segment = std::size_t{1} << 24;
    std::size_t longest_line = std::size_t{1} << 30;
    bool lines = false;  // each line of plain text is a record too
  };
  // Whether a file is JSONL, by its name: .jsonl, .ndjson or .json, optionally followed by .gz or
  // .zst.
  static bool is_jsonl(const std::filesystem::path& path);

  explicit RecordReader(const std::filesystem::path& path, RecordPosition from = {});
  RecordReader(const std::filesystem::path& path, RecordPosition from, Sizes sizes);

  bool next(Record& record);
  RecordPosition position() const { return position_; }
  bool jsonl() const { return jsonl_; }
  const std::string& name() const { return name_; }

  std::uint64_t bytes_read() const { return stream_.bytes_read(); }
  std::uint64_t bytes_total() const { return stream_.bytes_total(); }

 private:
  bool next_line(Record& record);
  bool next_segment(Record& record);
  bool fill();  // reads more text after the unread text; false at the end
  std::string_view unread() const { return {buffer_.data() + begin_, end_ - begin_}; }

  std::string name_;
  bool jsonl_;
  Sizes sizes_;
  TextStream stream_;
  RecordPosition position_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of the unread text in buffer_
  bool finished_ = false;
  bool after_break_ = false;  // the text before the unread text ends with a line break
};

}  // namespace kintsugi
