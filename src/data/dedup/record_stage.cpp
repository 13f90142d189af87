#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "data/dedup/dedup_directory.h"
#include "data/dedup/mark_reader.h"
#include "data/dedup/record_makers.h"
#include "data/dedup/record_sorter.h"

namespace kintsugi {
namespace {

using Json = DedupDirectory::Json;

// The files of a stage of a task.
class RecordFiles {
 public:
  RecordFiles(const DedupDirectory& directory, DedupStage stage, std::size_t task)
      : directory_(directory), stage_(stage), task_(task) {}

  // Writes them; returns what their description tells.
  Json write(RecordSorter& sorter, std::size_t buckets) {
    if (stage_ == DedupStage::Signatures) return write_bands(sorter);
    BucketFile file(directory_.records(stage_, task_), buckets);
    sorter.finish(
        [&](std::size_t bucket, std::string_view records) { file.write(bucket, records); });
    const Json description = {{"bytes", file.bytes()}, {"xxh3", file.checksums()}};
    file.publish();
    return description;
  }

 private:
  // datatrove's: a file per band.
  Json write_bands(RecordSorter& sorter) {
    Json checksums = Json::array();
    std::unique_ptr<BucketFile> file;
    const auto end = [&] {
      if (!file) return;
      checksums.push_back(file->checksums()[0]);
      file->publish();
    };
    sorter.finish([&](std::size_t band, std::string_view records) {
      if (!file || checksums.size() < band) {
        end();
        file = std::make_unique<BucketFile>(directory_.signatures(task_, band), 1);
      }
      file->write(0, records);
    });
    end();
    Json description;
    description["xxh3"] = checksums;
    return description;
  }

  const DedupDirectory& directory_;
  DedupStage stage_;
  std::size_t task_;
};

struct RecordTask {
  RecordTask(const DedupDirectory& directory, DedupStage stage, const RecordMaker& maker,
             std::size_t task, std::int64_t memory)
      : number(task),
        lock(directory.lock(stage, task)),
        documents(directory.options(), directory.files_of(task), false),
        marks(stage == DedupStage::Sequences && directory.options().by == DedupBy::Substrings
                  ? std::make_unique<MarkReader>(directory, DedupStage::Repeats, task, memory / 8)
                  : nullptr),
        sorter(maker.form(), maker.buckets(),
               directory.description(stage, task).replace_extension(".runs"),
               marks ? memory - memory / 8 : memory) {}

  std::size_t number;
  std::unique_ptr<FileLock> lock;
  std::mutex reading, sorting;
  DedupDocuments documents;           // under `reading`
  std::unique_ptr<MarkReader> marks;  // also
  std::int64_t counted_bytes = 0;     // also
  RecordSorter sorter;                // under `sorting`
  // Under the mutex of the pool:
  bool exhausted = false;
  int batches = 0;  // under way
};

// Each thread has a task of its own while there are enough; then the threads share the tasks that
// are left. The documents of a task get their numbers when they are read.
class RecordPool {
 public:
  RecordPool(const DedupDirectory& directory, DedupStage stage,
             const std::vector<std::size_t>& tasks, const DedupProgress& progress)
      : directory_(directory),
        stage_(stage),
        progress_(progress),
        maker_(RecordMaker::of(stage, directory.options())),
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
  struct MarkedDocument {
    DedupDocuments::Entry entry;
    std::vector<Mark> marks;
  };
  using Batch = std::vector<MarkedDocument>;

  void work() {
    try {
      Batch batch;
      RecordMaker::Scratch scratch;
      std::shared_ptr<RecordTask> task;
      while ((task = choose(std::move(task))) != nullptr) process(*task, batch, scratch);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
  }

  // A task with documents to read: the thread's own, a new one, or the one with fewest helpers.
  // Its batches are counted here, so that it is not finished before.
  std::shared_ptr<RecordTask> choose(std::shared_ptr<RecordTask> own) {
    const std::lock_guard lock(mutex_);
    if (failed_) return nullptr;
    if (progress_.stop()) throw DedupStopped();
    if (!own || own->exhausted) {
      own = nullptr;
      if (!pending_.empty()) {
        own = std::make_shared<RecordTask>(directory_, stage_, *maker_, pending_.front(),
                                           task_memory_);
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

  void process(RecordTask& task, Batch& batch, RecordMaker::Scratch& scratch) {
    read(task, batch);
    RecordBatch records(maker_->buckets(), [&](RecordBatch& full) {
      const std::lock_guard lock(task.sorting);
      for (std::size_t bucket = 0; bucket < full.buckets.size(); ++bucket) {
        if (!full.buckets[bucket].empty()) task.sorter.add(bucket, full.buckets[bucket]);
        full.buckets[bucket].clear();
      }
    });
    for (const auto& [entry, marks] : batch) maker_->make(entry, marks, scratch, records);
    records.flush();
    std::unique_lock lock(mutex_);
    task.exhausted |= batch.empty();
    if (--task.batches > 0 || !task.exhausted) return;
    lock.unlock();
    finish(task);
    lock.lock();
    std::erase_if(active_, [&](const auto& other) { return other.get() == &task; });
  }

  void read(RecordTask& task, Batch& batch) {
    constexpr std::size_t kBatchBytes = 256 * 1024;
    const std::lock_guard lock(task.reading);
    batch.clear();  // and free: entries that are used again would all grow to the longest text
    DedupDocuments::Entry entry;
    for (std::size_t bytes = 0; bytes < kBatchBytes && task.documents.next(entry);) {
      bytes += entry.text.size();
      std::vector<Mark> marks;
      if (task.marks) task.marks->take(entry.number, marks);
      batch.push_back({std::move(entry), std::move(marks)});
    }
    const std::int64_t read = task.documents.bytes_read();
    progress_.add(read - std::exchange(task.counted_bytes, read));
  }

  void finish(RecordTask& task) {
    if (stage_ != directory_.first_stage()) directory_.check_documents(task.number, task.documents);
    if (task.marks) task.marks->check_end();
    Json skipped = Json::array();
    for (const SkippedInput& one : task.documents.take_skipped()) skipped.push_back(to_string(one));
    // Each band has as many signatures.
    const std::size_t alike = stage_ == DedupStage::Signatures ? maker_->buckets() : 1;
    Json description = {{"documents", task.documents.documents()},
                        {"records", task.sorter.records() / static_cast<std::int64_t>(alike)},
                        {"empty", task.documents.empty()},
                        {"invalid", task.documents.invalid()},
                        {"text_bytes", task.documents.text_bytes()},
                        {"skipped", skipped}};
    description.update(
        RecordFiles(directory_, stage_, task.number).write(task.sorter, maker_->buckets()));
    directory_.finish(stage_, task.number, description);
  }

  const DedupDirectory& directory_;
  DedupStage stage_;
  const DedupProgress& progress_;
  std::unique_ptr<RecordMaker> maker_;
  std::mutex mutex_;
  std::deque<std::size_t> pending_;
  std::vector<std::shared_ptr<RecordTask>> active_;
  std::size_t threads_;
  std::int64_t task_memory_;
  std::exception_ptr error_;
  bool failed_ = false;
};

}  // namespace

void compute_records(const DedupDirectory& directory, DedupStage stage,
                     const std::vector<std::size_t>& tasks, const DedupProgress& progress) {
  RecordPool(directory, stage, tasks, progress).run();
}

}  // namespace kintsugi
