#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/dedup/dedup_directory.h"
#include "data/dedup/mark_reader.h"
#include "data/dedup/pieces.h"
#include "data/dedup/sorted_records.h"

namespace kintsugi {

// Records on their way to a sorter.
class RecordBatch {
 public:
  using Flush = std::function<void(RecordBatch& batch)>;  // takes the records and clears them
  RecordBatch(std::size_t buckets, Flush flush) : buckets(buckets), flush_(std::move(flush)) {}

  // Takes any number of values and a number.
  void add(std::size_t bucket, const RecordForm& form, const std::uint64_t* values,
           std::uint64_t number) {
    std::string& to = buckets[bucket];
    for (std::size_t row = 0; row < form.rows; ++row)
      to.append(reinterpret_cast<const char*>(values + row), form.value_bytes);
    to.append(reinterpret_cast<const char*>(&number), form.number_bytes);
    bytes_ += form.bytes();
    if (bytes_ >= kMostBytes) flush();
  }
  void flush() {
    if (bytes_ > 0) flush_(*this);
    bytes_ = 0;
  }

  std::vector<std::string> buckets;

 private:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  Flush flush_;
  std::size_t bytes_ = 0;
};

// Computes the records of documents, for a stage that reads them. One object for all threads.
class RecordMaker {
 public:
  static std::unique_ptr<RecordMaker> of(DedupStage stage, const DedupOptions& options);
  virtual ~RecordMaker() = default;

  virtual RecordForm form() const = 0;
  virtual std::size_t buckets() const = 0;

  struct Scratch {
    MinHash::Scratch minhash;
    std::vector<std::uint64_t> signature, words;
    Pieces pieces;
    std::unique_ptr<SequenceSamples> samples;
  };
  // `marks`: of the document, in order.
  virtual void make(const DedupDocuments::Entry& entry, const std::vector<Mark>& marks,
                    Scratch& scratch, RecordBatch& records) const = 0;
};

}  // namespace kintsugi
