#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/corpora/input_files.h"
#include "data/corpora/parquet_reader.h"
#include "data/corpora/warc.h"

namespace kintsugi {

// What the files of a corpus are, by their names.
enum class CorpusFormat : std::uint8_t {
  Text,     // one document
  Jsonl,    // .jsonl, .ndjson, .json: an object per line
  Parquet,  // .parquet: a row is read as such an object
  Warc      // .warc, .wet: also each document of a web archive
};

// A unit of a file that can be processed independently and in bounded memory: a JSON object (a line
// of JSONL, a row of Parquet, a document of a web archive), or a segment of plain text. The segment
// boundaries depend only on the text.
struct Record {
  std::string_view bytes;  // valid until the next call
  std::uint64_t line = 0;  // number of the line, row or record in the file, from 1
  bool ends_document = true;
  bool after_break = false;  // of a segment: the text before it ends with a line break
};

// The position of a reader in a file: everything before it has been returned.
struct RecordOffset {
  std::uint64_t text_bytes = 0;  // of decompressed text; of Parquet as `line`
  std::uint64_t line = 0;        // lines, rows or records before it
};

class RecordReader {
 public:
  // A segment of plain text ends at the last safe boundary within `segment` bytes, else at the
  // first one after them, else between two characters at `longest_segment`.
  struct Options {
    std::size_t segment = std::size_t{1} << 20;
    std::size_t longest_segment = std::size_t{1} << 24;
    std::size_t longest_line = std::size_t{1} << 30;  // also of a row and a record
    bool lines = false;                               // each line of plain text is a record too
    std::vector<std::string> keys = {};               // that are read of Parquet; empty: all
    bool skip_damaged = false;                        // and note it in skipped()
  };
  // By its name, which may end in .gz, .zst, .zstd or .xz.
  static CorpusFormat format_of(const std::filesystem::path& path);
  static bool is_jsonl(const std::filesystem::path& path);
  static bool has_objects(const std::filesystem::path& path);     // its records are JSON objects
  static const char* unit_of(const std::filesystem::path& path);  // line, row, record

  explicit RecordReader(const std::filesystem::path& path, RecordOffset from = {});
  RecordReader(const std::filesystem::path& path, RecordOffset from, Options options);

  bool next(Record& record);
  RecordOffset position() const { return position_; }
  bool has_objects() const { return format_ != CorpusFormat::Text; }
  const std::string& name() const { return name_; }
  // What was left out since the last call.
  std::vector<SkippedInput> take_skipped() { return std::exchange(skipped_, {}); }

  std::uint64_t bytes_read() const;  // of the file on disk; estimated for Parquet
  std::uint64_t bytes_total() const { return bytes_total_; }

 private:
  void open_parquet(const std::filesystem::path& path);
  void skip_text(std::uint64_t bytes);
  bool next_line(Record& record);
  bool next_segment(Record& record);
  bool next_row(Record& record);
  bool next_archived(Record& record);
  std::optional<WarcHeader> next_header();
  bool read_archived(const WarcHeader& header);
  void lose_records(const std::string& reason);
  void skip_rows(const DamagedInput& damage);
  void skip_line();
  bool skip_bytes(std::uint64_t bytes);
  bool fill_to(std::uint64_t bytes);
  bool fill();  // reads more text after the unread text; false at the end, and before damage
  bool pass_damage();
  bool go_on_behind_damage();
  void take(std::size_t bytes);
  std::string_view unread() const { return {buffer_.data() + begin_, end_ - begin_}; }

  std::string name_;
  CorpusFormat format_;
  Options options_;
  std::optional<TextStream> stream_;  // or
  std::optional<ParquetReader> parquet_;
  RecordOffset position_;
  std::uint64_t bytes_total_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of the unread text in buffer_
  bool finished_ = false;
  bool after_break_ = false;  // the text before the unread text ends with a line break
  std::string object_;
  std::optional<DamagedInput> damage_;  // behind the unread text
  std::vector<SkippedInput> skipped_;
  bool returned_ = true;  // a record since the last entry of skipped_
};

// Distributes the records (lines of JSONL, segments of plain text) of many files to many threads in
// batches; the threads parse them. Each lane has one open file. A thread reads from its own lane if
// that is free, otherwise from any other.
class CorpusSource {
 public:
  // sample_bytes > 0 reads only about that much text: from the start of each file, in proportion to
  // the file sizes. The selection does not depend on the number of lanes.
  CorpusSource(std::vector<std::filesystem::path> files, std::size_t lanes,
               std::int64_t sample_bytes = 0, RecordReader::Options options = {});

  struct Batch {  // records of one file, about 512 KiB
    struct RecordRange {
      std::size_t begin, length;
      std::uint64_t line;
    };
    std::string file;
    bool objects = false;
    std::string bytes;
    std::vector<RecordRange> records;
  };
  bool next(std::size_t thread, Batch& batch);  // false at the end of all files

  std::int64_t bytes_total() const { return bytes_total_; }  // of the files on disk
  std::int64_t bytes_read() const { return bytes_read_; }
  std::vector<SkippedInput> take_skipped();

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
  RecordReader::Options options_;
  std::mutex skipped_mutex_;
  std::vector<SkippedInput> skipped_;
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

// Appends a string with its quotes; the text is copied as it is if it is not UTF-8.
void append_json_string(std::string& json, std::string_view text);

struct DocumentFormat {
  std::string text_key = "text";  // JSON key or column of the text
  std::string prompt_key;         // of a prompt before the text, without loss; empty: none

  std::vector<std::string> keys() const {
    return prompt_key.empty() ? std::vector{text_key} : std::vector{text_key, prompt_key};
  }
};

struct Document {
  std::string prompt, text;
};

// Parses the object of a record. A UserError names file, line and byte.
void parse_document(std::string_view line, const DocumentFormat& format, const std::string& file,
                    std::uint64_t line_number, Document& document);

}  // namespace kintsugi
