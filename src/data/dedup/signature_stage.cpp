#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/hash.h"
#include "core/output_file.h"
#include "data/dedup/dedup_directory.h"
#include "data/dedup/sorted_records.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = DedupDirectory::Json;

// Sorts the signatures of a task, band by band, in bounded memory: what does not fit is written in
// sorted runs, which are merged at the end.
class SignatureSorter {
 public:
  SignatureSorter(const DedupDirectory& directory, std::size_t task, std::int64_t memory)
      : directory_(directory),
        form_{directory.rows(), directory.value_bytes()},
        task_(task),
        memory_(memory),
        bands_(directory.bands()),
        runs_path_(directory.description(DedupStage::Signatures, task).replace_extension(".runs")) {
    fs::remove(runs_path_.string() + ".tmp");  // of a killed process
    // A third is left for the order and the copy of the band that is being sorted.
    const auto most = static_cast<std::size_t>(memory) * 2 / 3 / bands_.size();
    band_bytes_ = std::max<std::size_t>(most / form_.bytes(), 16) * form_.bytes();
  }

  // `values`: of all bands.
  void add(const std::vector<std::uint64_t>& values, std::uint32_t document) {
    if (bands_[0].size() == band_bytes_) write_run();
    std::size_t at = 0;
    for (std::string& band : bands_) {
      if (band.empty()) band.reserve(band_bytes_);
      for (std::size_t row = 0; row < form_.rows; ++row)
        band.append(reinterpret_cast<const char*>(&values[at++]), form_.value_bytes);
      band.append(reinterpret_cast<const char*>(&document), 4);
    }
    ++records_;
  }

  std::int64_t records() const { return records_; }

  // Writes the files; returns their checksums.
  Json finish() {
    if (runs_ && !bands_[0].empty()) write_run();
    Json checksums = Json::array();
    for (std::size_t band = 0; band < bands_.size(); ++band)
      checksums.push_back(hex64(runs_ ? merge_band(band) : write_band(band)));
    return checksums;
  }

 private:
  void write_run() {
    if (!runs_) runs_ = std::make_unique<NewFile>(runs_path_);
    for (std::string& band : bands_) {
      sort_records(form_, band);
      runs_->write(band.data(), band.size());
      run_ends_.push_back((run_ends_.empty() ? 0 : run_ends_.back()) + band.size());
      band.clear();
    }
  }

  std::uint64_t write_band(std::size_t band) {
    sort_records(form_, bands_[band]);
    NewFile file(directory_.signatures(task_, band));
    file.write(bands_[band].data(), bands_[band].size());
    file.publish({}, OnDisk::Later);
    const std::uint64_t checksum = hash64(bands_[band]);
    bands_[band] = {};
    return checksum;
  }

  std::uint64_t merge_band(std::size_t band) {
    bands_[band] = {};
    std::vector<RecordRange> ranges;
    for (std::size_t i = band; i < run_ends_.size(); i += bands_.size())
      ranges.push_back({runs_path_.string() + ".tmp", i == 0 ? 0 : run_ends_[i - 1], run_ends_[i]});
    RecordMerge merge(form_, std::move(ranges), memory_ / 2);
    NewFile file(directory_.signatures(task_, band));
    StreamHash checksum;
    std::string block;
    const auto write_block = [&] {
      file.write(block.data(), block.size());
      checksum.update(block.data(), block.size());
      block.clear();
    };
    const char* record = nullptr;
    for (std::size_t range; merge.next(record, range);) {
      block.append(record, form_.bytes());
      if (block.size() >= kBlock) write_block();
    }
    write_block();
    file.publish({}, OnDisk::Later);
    return checksum.digest();
  }

  static constexpr std::size_t kBlock = std::size_t{1} << 20;
  const DedupDirectory& directory_;
  RecordForm form_;
  std::size_t task_;
  std::int64_t memory_;
  std::vector<std::string> bands_;
  std::size_t band_bytes_;
  fs::path runs_path_;
  std::unique_ptr<NewFile> runs_;  // never published
  std::vector<std::uint64_t> run_ends_;
  std::int64_t records_ = 0;
};

struct SignatureTask {
  SignatureTask(const DedupDirectory& directory, std::size_t task, std::int64_t memory)
      : number(task),
        lock(directory.lock(DedupStage::Signatures, task)),
        documents(directory.options(), directory.files_of(task), false),
        sorter(directory, task, memory) {}

  std::size_t number;
  std::unique_ptr<FileLock> lock;
  std::mutex reading, sorting;
  DedupDocuments documents;  // under `reading`
  std::int64_t counted_bytes = 0;
  SignatureSorter sorter;  // under `sorting`
  // Under the mutex of the pool:
  bool exhausted = false;
  int batches = 0;  // under way
};

// Each thread has a task of its own while there are enough; then the threads share the tasks that
// are left. The documents of a task get their numbers when they are read.
class SignaturePool {
 public:
  SignaturePool(const DedupDirectory& directory, const std::vector<std::size_t>& tasks,
                const DedupProgress& progress)
      : directory_(directory),
        progress_(progress),
        minhash_(directory.options().shape),
        pending_(tasks.begin(), tasks.end()),
        threads_(directory.options().threads),
        task_memory_(directory.options().memory / static_cast<std::int64_t>(std::clamp<std::size_t>(
                                                      tasks.size(), 1, threads_))) {}

  void run() {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < threads_; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Batch {
    std::vector<DedupDocuments::Entry> entries;
    std::vector<std::vector<std::uint64_t>> signatures;  // empty: too short
    std::size_t size = 0;
  };

  void work() {
    try {
      Batch batch;
      MinHash::Scratch scratch;
      std::shared_ptr<SignatureTask> task;
      while ((task = choose(std::move(task))) != nullptr) process(*task, batch, scratch);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
  }

  // A task with documents to read: the thread's own, a new one, or the one with fewest helpers.
  // Its batches are counted here, so that it is not finished before.
  std::shared_ptr<SignatureTask> choose(std::shared_ptr<SignatureTask> own) {
    const std::lock_guard lock(mutex_);
    if (failed_) return nullptr;
    if (progress_.stop()) throw DedupStopped();
    if (!own || own->exhausted) {
      own = nullptr;
      if (!pending_.empty()) {
        own = std::make_shared<SignatureTask>(directory_, pending_.front(), task_memory_);
        pending_.pop_front();
        active_.push_back(own);
      }
      for (const auto& other : active_)
        if (pending_.empty() && !other->exhausted && (!own || other->batches < own->batches))
          own = other;
    }
    if (own) ++own->batches;
    return own;
  }

  void process(SignatureTask& task, Batch& batch, MinHash::Scratch& scratch) {
    read(task, batch);
    for (std::size_t i = 0; i < batch.size; ++i)
      if (!sign(batch.entries[i], batch.signatures[i], scratch)) batch.signatures[i].clear();
    {
      const std::lock_guard lock(task.sorting);
      for (std::size_t i = 0; i < batch.size; ++i)
        if (!batch.signatures[i].empty())
          task.sorter.add(batch.signatures[i], batch.entries[i].number);
    }
    std::unique_lock lock(mutex_);
    task.exhausted |= batch.size == 0;
    if (--task.batches > 0 || !task.exhausted) return;
    lock.unlock();
    finish(task);
    lock.lock();
    std::erase_if(active_, [&](const auto& other) { return other.get() == &task; });
  }

  void read(SignatureTask& task, Batch& batch) {
    constexpr std::size_t kBatchBytes = 256 * 1024;
    const std::lock_guard lock(task.reading);
    batch.size = 0;
    for (std::size_t bytes = 0; bytes < kBatchBytes; ++batch.size) {
      if (batch.size == batch.entries.size()) {
        batch.entries.emplace_back();
        batch.signatures.emplace_back();
      }
      if (!task.documents.next(batch.entries[batch.size])) break;
      bytes += batch.entries[batch.size].text.size();
    }
    const std::int64_t read = task.documents.bytes_read();
    progress_.add(read - std::exchange(task.counted_bytes, read));
  }

  bool sign(const DedupDocuments::Entry& entry, std::vector<std::uint64_t>& signature,
            MinHash::Scratch& scratch) const {
    const DedupBy by = directory_.options().by;
    if (by == DedupBy::Words) return minhash_.signature(entry.text, scratch, signature);
    const std::string& text = by == DedupBy::Url ? entry.url : entry.text;
    const TextDigest digest = text_digest(text);
    signature = {digest.high, digest.low};
    return !text.empty();
  }

  void finish(SignatureTask& task) {
    const Json checksums = task.sorter.finish();
    Json skipped = Json::array();
    for (const SkippedInput& one : task.documents.take_skipped()) skipped.push_back(to_string(one));
    directory_.finish(DedupStage::Signatures, task.number,
                      {{"documents", task.documents.documents()},
                       {"records", task.sorter.records()},
                       {"empty", task.documents.empty()},
                       {"invalid", task.documents.invalid()},
                       {"skipped", skipped},
                       {"xxh3", checksums}});
  }

  const DedupDirectory& directory_;
  const DedupProgress& progress_;
  MinHash minhash_;
  std::mutex mutex_;
  std::deque<std::size_t> pending_;
  std::vector<std::shared_ptr<SignatureTask>> active_;
  std::size_t threads_;
  std::int64_t task_memory_;
  std::exception_ptr error_;
  bool failed_ = false;
};

}  // namespace

void compute_signatures(const DedupDirectory& directory, const std::vector<std::size_t>& tasks,
                        const DedupProgress& progress) {
  SignaturePool(directory, tasks, progress).run();
}

}  // namespace kintsugi
