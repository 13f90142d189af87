#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpora/text_stream.h"

namespace kintsugi {

// A file cut into what can be worked on by itself, in bounded memory: the lines of JSONL, or parts
// of plain text. The cuts depend on the text alone.
struct Record {
  std::string_view bytes;  // valid until the next call
  std::uint64_t line = 0;  // of the file, from 1
  bool ends_document = true;
};

// Where a reader stands: everything before it has been handed out.
struct RecordPlace {
  std::uint64_t text_bytes = 0;  // of the text, decompressed
  std::uint64_t line = 0;        // lines before it
};

class RecordReader {
 public:
  // The sizes are those of plain text: a part is cut at the last good place before part_bytes, and
  // anywhere between characters when there is none before longest_part.
  struct Sizes {
    std::size_t part = std::size_t{1} << 20;
    std::size_t longest_part = std::size_t{1} << 24;
    std::size_t longest_line = std::size_t{1} << 30;
  };
  // Whether a file is JSONL, by its name: .jsonl, .ndjson or .json, then perhaps .gz or .zst.
  static bool is_jsonl(const std::filesystem::path& path);

  explicit RecordReader(const std::filesystem::path& path, RecordPlace from = {});
  RecordReader(const std::filesystem::path& path, RecordPlace from, Sizes sizes);

  bool next(Record& record);
  RecordPlace place() const { return place_; }
  bool jsonl() const { return jsonl_; }
  const std::string& name() const { return name_; }

  std::uint64_t bytes_read() const { return stream_.bytes_read(); }
  std::uint64_t bytes_total() const { return stream_.bytes_total(); }

 private:
  bool next_line(Record& record);
  bool next_part(Record& record);
  bool fill();  // reads on behind what is there; false at the end of the text
  std::string_view waiting() const { return {buffer_.data() + begin_, end_ - begin_}; }

  std::string name_;
  bool jsonl_;
  Sizes sizes_;
  TextStream stream_;
  RecordPlace place_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what is read and not handed out
  bool finished_ = false;
};

}  // namespace kintsugi
