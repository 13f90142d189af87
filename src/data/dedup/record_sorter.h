#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_file.h"
#include "data/dedup/sorted_records.h"

namespace kintsugi {

// Sorts records within each of some buckets in bounded memory: what does not fit is written in
// sorted runs, which are merged at the end.
class RecordSorter {
 public:
  // `runs`: a file for the time of the sorting.
  RecordSorter(const RecordForm& form, std::size_t buckets, std::filesystem::path runs,
               std::int64_t memory);

  void add(std::size_t bucket, std::string_view records);
  std::int64_t records() const { return records_; }

  // Calls `write` with the records of each bucket, sorted, in blocks; at least once for each.
  using Write = std::function<void(std::size_t bucket, std::string_view records)>;
  void finish(const Write& write);

 private:
  bool fits(std::size_t bucket, std::size_t bytes) const;
  void write_run();
  void merge_runs(std::size_t bucket, const Write& write);

  RecordForm form_;
  std::filesystem::path runs_path_;
  std::int64_t memory_;
  std::vector<std::string> buckets_;
  std::size_t held_ = 0, largest_ = 0;  // bytes of all buckets, and of the largest
  std::unique_ptr<NewFile> runs_;       // never published
  std::vector<std::uint64_t> run_ends_;
  std::int64_t records_ = 0;
};

// Writes the buckets of a sorter one after the other into a new file. The file is read again with
// what describe() tells.
class BucketFile {
 public:
  BucketFile(const std::filesystem::path& path, std::size_t buckets);

  void write(std::size_t bucket, std::string_view records);
  void publish() { file_.publish({}, OnDisk::Later); }
  // Of each bucket.
  const std::vector<std::uint64_t>& bytes() const { return bytes_; }
  const std::vector<std::string>& checksums();

 private:
  void end_bucket();

  NewFile file_;
  std::vector<std::uint64_t> bytes_;
  std::vector<std::string> checksums_;
  std::unique_ptr<StreamHash> hash_ = std::make_unique<StreamHash>();
};

}  // namespace kintsugi
