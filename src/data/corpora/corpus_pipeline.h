#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/corpora/record_reader.h"

namespace kintsugi {

// The position of a job in its inputs.
struct InputOffset {
  std::uint64_t file = 0;  // index into the inputs
  RecordOffset in_file;
};

// Records of one file, concatenated.
struct CorpusBatch {
  struct Entry {
    std::size_t end;
    std::uint64_t line;
    bool starts_document, ends_document, after_break;
  };
  std::string_view record(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : entries[i - 1].end;
    return std::string_view(bytes).substr(begin, entries[i].end - begin);
  }

  std::uint64_t number = 0;
  std::string bytes;
  std::vector<Entry> entries;
  bool objects = false;  // the records are JSON objects
  std::string file;
  std::vector<SkippedInput> skipped;  // before its end
  InputOffset end;                    // the position after this batch
  std::uint64_t input_bytes = 0;      // of all files on disk up to `end`
  std::exception_ptr error;           // of the reader; then there are no entries
};

// How the files of a job are read. The batches depend on nothing else: a job that continues behind
// one of them gets the same ones.
struct BatchOptions {
  RecordReader::Options records = {};
  std::size_t bytes = 256 * 1024;  // a batch ends with the record that reaches this
};

// Calls `submit` with each batch from a position on, until it returns false. The last batch has no
// entries.
void read_batches(const std::vector<std::filesystem::path>& inputs, const BatchOptions& options,
                  const InputOffset& from, const std::function<bool(CorpusBatch)>& submit);

// Reads the inputs on one thread, processes their batches on others and returns the results in the
// order of the inputs. At most capacity() batches exist at a time.
template <class Result>
class CorpusPipeline {
 public:
  using Process = std::function<Result(const CorpusBatch&)>;

  // A thread for each of `processes`.
  CorpusPipeline(std::vector<std::filesystem::path> inputs, BatchOptions options,
                 std::vector<Process> processes, InputOffset from = {})
      : inputs_(std::move(inputs)), options_(std::move(options)), processes_(std::move(processes)) {
    KINTSUGI_CHECK(!processes_.empty(), "a pipeline without threads");
    threads_.emplace_back([this, from] {
      read_batches(inputs_, options_, from,
                   [this](CorpusBatch batch) { return submit(std::move(batch)); });
      const std::lock_guard lock(mutex_);
      all_read_ = true;
      changed_.notify_all();
    });
    for (const Process& process : processes_)
      threads_.emplace_back([this, &process] { process_batches(process); });
  }
  ~CorpusPipeline() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  CorpusPipeline(const CorpusPipeline&) = delete;
  CorpusPipeline& operator=(const CorpusPipeline&) = delete;

  // False at the end. The error of a batch is thrown when that batch is due.
  bool next(Result& result) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return done_.contains(taken_); };
    changed_.wait(lock, [&] { return ready() || (all_read_ && taken_ == read_); });
    if (!ready()) return false;
    Done done = std::move(done_.extract(taken_).mapped());
    ++taken_;
    changed_.notify_all();
    if (done.error) std::rethrow_exception(done.error);
    result = std::move(done.result);
    return true;
  }

  std::size_t capacity() const { return 2 * processes_.size() + 2; }
  std::uint64_t batches_read() const {
    const std::lock_guard lock(mutex_);
    return read_;
  }

 private:
  struct Done {
    Result result;
    std::exception_ptr error;
  };

  bool submit(CorpusBatch batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || read_ - taken_ < capacity(); });
    if (stopping_) return false;
    batch.number = read_++;
    to_process_.push_back(std::move(batch));
    changed_.notify_all();
    return true;
  }
  void process_batches(const Process& process) {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || all_read_ || !to_process_.empty(); });
      if (stopping_ || to_process_.empty()) return;
      const CorpusBatch batch = std::move(to_process_.front());
      to_process_.pop_front();
      lock.unlock();
      Done done{.result = {}, .error = batch.error};
      try {
        if (!done.error) done.result = process(batch);
      } catch (...) {
        done.error = std::current_exception();
      }
      lock.lock();
      done_.emplace(batch.number, std::move(done));
      changed_.notify_all();
    }
  }

  const std::vector<std::filesystem::path> inputs_;
  const BatchOptions options_;
  const std::vector<Process> processes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<CorpusBatch> to_process_;
  std::map<std::uint64_t, Done> done_;
  std::uint64_t read_ = 0, taken_ = 0;
  bool all_read_ = false, stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kintsugi
