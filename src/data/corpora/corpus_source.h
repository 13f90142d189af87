#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/corpora/record_reader.h"

namespace kintsugi {

// Hands the records (lines of JSONL, parts of plain text) of many files to many threads, in
// batches; the threads parse them. As many files are open as there are lanes; a thread reads from
// its own lane if that is free, else from any.
class CorpusSource {
 public:
  // sample_bytes > 0 takes about that much: from the front of each file, in proportion to the
  // sizes of the files, so what is taken does not depend on the lanes.
  CorpusSource(std::vector<std::filesystem::path> files, std::size_t lanes,
               std::int64_t sample_bytes = 0);

  struct Batch {  // of one file, about half a megabyte
    struct Place {
      std::size_t begin, length;
      std::uint64_t line;
    };
    std::string file;
    bool jsonl = false;
    std::string bytes;
    std::vector<Place> records;
  };
  bool next(std::size_t thread, Batch& batch);  // false when all has been handed out

  std::int64_t bytes_total() const { return bytes_total_; }  // of the files as they lie
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Lane {
    std::mutex mutex;
    std::unique_ptr<RecordReader> reader;
    std::size_t file = 0;
    std::int64_t counted = 0;  // of the file's bytes, in bytes_read_
    std::int64_t left = 0;     // of the file's share of the sample
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

}  // namespace kintsugi
