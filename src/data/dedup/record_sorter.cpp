#include "data/dedup/record_sorter.h"

#include <algorithm>

namespace kintsugi {

namespace fs = std::filesystem;

RecordSorter::RecordSorter(const RecordForm& form, std::size_t buckets, fs::path runs,
                           std::int64_t memory)
    : form_(form), runs_path_(std::move(runs)), memory_(memory), buckets_(buckets) {
  fs::remove(runs_path_.string() + ".tmp");  // of a killed process
}

constexpr std::size_t kOrderBytes = 16;  // of a record that is being sorted

// With the copy and the order of the bucket that is being sorted.
bool RecordSorter::fits(std::size_t bucket, std::size_t bytes) const {
  constexpr std::size_t kFewestRecords = 16;
  const std::size_t held = held_ + bytes;
  const std::size_t largest = std::max(largest_, buckets_[bucket].size() + bytes);
  const std::size_t needed = held + largest + largest / form_.bytes() * kOrderBytes;
  return needed <= static_cast<std::size_t>(memory_) ||
         held_ < kFewestRecords * buckets_.size() * form_.bytes();
}

void RecordSorter::add(std::size_t bucket, std::string_view records) {
  if (!fits(bucket, records.size())) write_run();
  std::string& own = buckets_[bucket];
  // Room for what fits if all buckets are alike: strings that grow leave holes in the heap.
  if (own.capacity() < records.size())
    own.reserve(static_cast<std::size_t>(memory_) /
                (buckets_.size() + 1 + kOrderBytes / form_.bytes() + 1));
  own += records;
  held_ += records.size();
  largest_ = std::max(largest_, own.size());
  records_ += static_cast<std::int64_t>(records.size() / form_.bytes());
}

void RecordSorter::write_run() {
  if (!runs_) runs_ = std::make_unique<NewFile>(runs_path_);
  for (std::string& bucket : buckets_) {
    sort_records(form_, bucket);
    runs_->write(bucket.data(), bucket.size());
    run_ends_.push_back((run_ends_.empty() ? 0 : run_ends_.back()) + bucket.size());
    bucket.clear();
  }
  held_ = largest_ = 0;
}

void RecordSorter::finish(const Write& write) {
  if (runs_ && held_ > 0) write_run();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (!runs_) {
      sort_records(form_, buckets_[bucket]);
      write(bucket, buckets_[bucket]);
    }
    buckets_[bucket] = {};
  }
  for (std::size_t bucket = 0; runs_ && bucket < buckets_.size(); ++bucket)
    merge_runs(bucket, write);
  runs_.reset();
}

void RecordSorter::merge_runs(std::size_t bucket, const Write& write) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  std::vector<RecordRange> ranges;
  for (std::size_t i = bucket; i < run_ends_.size(); i += buckets_.size())
    if (const std::uint64_t begin = i == 0 ? 0 : run_ends_[i - 1]; begin < run_ends_[i])
      ranges.push_back({.file = runs_path_.string() + ".tmp", .begin = begin, .end = run_ends_[i]});
  // Several threads add the documents of a task, in any order.
  RecordMerge merge(form_, std::move(ranges), memory_ / 2, RecordMerge::Ties::Numbers);
  std::string block;
  const char* record = nullptr;
  for (std::size_t range; merge.next(record, range);) {
    block.append(record, form_.bytes());
    if (block.size() < kBlock) continue;
    write(bucket, block);
    block.clear();
  }
  write(bucket, block);
}

BucketFile::BucketFile(const fs::path& path, std::size_t buckets) : file_(path), bytes_(buckets) {}

void BucketFile::write(std::size_t bucket, std::string_view records) {
  while (checksums_.size() < bucket) end_bucket();
  file_.write(records.data(), records.size());
  hash_->update(records.data(), records.size());
  bytes_[bucket] += records.size();
}

const std::vector<std::string>& BucketFile::checksums() {
  while (checksums_.size() < bytes_.size()) end_bucket();
  return checksums_;
}

void BucketFile::end_bucket() {
  checksums_.push_back(hex64(hash_->digest()));
  hash_ = std::make_unique<StreamHash>();
}

}  // namespace kintsugi
