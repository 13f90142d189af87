#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpora/input_files.h"

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
struct RecordOffset {
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

  explicit RecordReader(const std::filesystem::path& path, RecordOffset from = {});
  RecordReader(const std::filesystem::path& path, RecordOffset from, Sizes sizes);

  bool next(Record& record);
  RecordOffset position() const { return position_; }
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
  RecordOffset position_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of the unread text in buffer_
  bool finished_ = false;
  bool after_break_ = false;  // the text before the unread text ends with a line break
};

// Distributes the records (lines of JSONL, segments of plain text) of many files to many threads in
// batches; the threads parse them. Each lane has one open file. A thread reads from its own lane if
// that is free, otherwise from any other.
class CorpusSource {
 public:
  // sample_bytes > 0 reads only about that much text: from the start of each file, in proportion to
  // the file sizes. The selection does not depend on the number of lanes.
  CorpusSource(std::vector<std::filesystem::path> files, std::size_t lanes,
               std::int64_t sample_bytes = 0);

  struct Batch {  // records of one file, about 512 KiB
    struct RecordRange {
      std::size_t begin, length;
      std::uint64_t line;
    };
    std::string file;
    bool jsonl = false;
    std::string bytes;
    std::vector<RecordRange> records;
  };
  bool next(std::size_t thread, Batch& batch);  // false at the end of all files

  std::int64_t bytes_total() const { return bytes_total_; }  // of the files on disk
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Lane {
    std::mutex mutex;
    std::unique_ptr<RecordReader> reader;
    std::size_t file = 0;
    std::int64_t counted = 0;      // bytes of the file that bytes_read_ includes
    std::int64_t sample_left = 0;  // bytes of the file still to read for the sample
  };
  bool fill(Lane& lane, Batch& batch);
  bool open_next(Lane& lane);
  void close(Lane& lane);

  std::vector<std::filesystem::path> files_;
  std::vector<std::int64_t> sizes_;
  std::int64_t sample_bytes_, bytes_total_ = 0;
  std::atomic<std::int64_t> bytes_read_ = 0;
  std::atomic<std::size_t> next_file_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

// An error in a line of JSON, with the number of the byte (from 1).
class JsonLineError : public std::runtime_error {
 public:
  JsonLineError(std::string message, std::size_t byte)
      : std::runtime_error(std::move(message)), byte_(byte) {}
  std::size_t byte() const { return byte_; }

 private:
  std::size_t byte_;
};

// Parses one JSON object and copies the string values of one or two keys (prompt_key may be empty).
// If a key is repeated, its last value counts. Strict: the rest of the line is checked too,
// including UTF-8 and surrogate pairs. Optimized for long strings: text without escapes is copied
// in bulk.
void parse_json_line(std::string_view line, std::string_view text_key, std::string_view prompt_key,
                     std::string& text, std::string& prompt);

struct DocumentFormat {
  std::string text_key = "text";  // JSONL key of the text
  std::string prompt_key;  // JSONL key of a prompt before the text, without loss; empty: none
};

struct Document {
  std::string prompt, text;
};

// Parses a line of JSONL (record_reader.h). A UserError names file, line and byte.
void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, Document& document);

}  // namespace kintsugi
