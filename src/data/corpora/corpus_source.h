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

}  // namespace kintsugi
