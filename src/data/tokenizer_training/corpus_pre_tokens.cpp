#include "data/tokenizer_training/corpus_pre_tokens.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "data/corpora/corpus_source.h"
#include "data/tokenizers/normalizer.h"
#include "data/tokenizers/pre_tokenizer.h"

namespace kintsugi {
namespace {

constexpr std::size_t kShards = 32;
// A thread flushes its local counts at this size; most text consists of a few thousand words.
constexpr std::size_t kLocalPreTokens = std::size_t{1} << 18, kLocalBytes = std::size_t{1} << 23;

class Counter {
 public:
  Counter(const std::vector<std::filesystem::path>& files, const CountingOptions& options,
          std::size_t threads)
      : options_(options),
        source_(files, threads, options.sample_bytes),
        pre_tokenizer_(PreTokenizer::of_family(options.pre_tokenizer)),
        normalizer_(Normalizer::of_json(normalizer_json_of_family(options.pre_tokenizer))) {
    result_.shards.resize(kShards);
  }

  CorpusPreTokens run(std::size_t threads) {
    running_ = threads;
    std::vector<std::jthread> workers;
    for (std::size_t thread = 0; thread < threads; ++thread)
      workers.emplace_back([this, thread] { work(thread); });
    {
      std::unique_lock lock(mutex_);
      while (!finished_.wait_for(lock, std::chrono::milliseconds(200),
                                 [this] { return running_ == 0; })) {
        lock.unlock();
        if (options_.progress) options_.progress(source_.bytes_read(), source_.bytes_total());
        lock.lock();
      }
    }
    workers.clear();
    if (error_) std::rethrow_exception(error_);
    return std::move(result_);
  }

 private:
  void work(std::size_t thread) {
    try {
      count(thread);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
    }
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) finished_.notify_all();
  }

  void count(std::size_t thread) {
    PreTokenizer pre_tokenizer = pre_tokenizer_;
    Normalizer normalizer = normalizer_;
    PreTokenCounts local;
    CorpusSource::Batch batch;
    Document document;
    std::int64_t bytes = 0;
    while (!stop_ && source_.next(thread, batch)) {
      for (const auto& [begin, length, line] : batch.records) {
        std::string_view text = std::string_view(batch.bytes).substr(begin, length);
        if (batch.jsonl) {
          parse_document(text, options_.format, batch.file, line, document);
          text = document.text;
        }
        bytes += static_cast<std::int64_t>(text.size());
        pre_tokenizer.for_each_pre_token(normalizer.apply(text),
                                         [&](std::string_view pre_token) { local.add(pre_token); });
        if (local.size() > kLocalPreTokens || local.long_bytes() > kLocalBytes)
          flush(local, thread);
      }
    }
    flush(local, thread);
    const std::lock_guard lock(mutex_);
    result_.text_bytes += bytes;
  }

  // Adds the local counts to the shards. Each thread starts at another shard to avoid contention.
  void flush(PreTokenCounts& local, std::size_t thread) {
    struct Counted {
      std::string_view pre_token;
      std::int64_t count;
      std::uint64_t hash;
    };
    std::array<std::vector<Counted>, kShards> by_shard;
    local.for_each([&](std::string_view pre_token, std::int64_t count, std::uint64_t hash) {
      by_shard[(hash >> 32) % kShards].push_back({pre_token, count, hash});
    });
    for (std::size_t i = 0; i < kShards; ++i) {
      const std::size_t shard = (thread + i) % kShards;
      const std::lock_guard lock(shard_mutexes_[shard]);
      for (const auto& [pre_token, count, hash] : by_shard[shard])
        result_.shards[shard].add(pre_token, count, hash);
    }
    local.clear();
  }

  const CountingOptions& options_;
  CorpusSource source_;
  const PreTokenizer pre_tokenizer_;
  const Normalizer normalizer_;
  CorpusPreTokens result_;
  std::array<std::mutex, kShards> shard_mutexes_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::size_t running_ = 0;
  std::exception_ptr error_;
};

}  // namespace

std::vector<PreTokenCount> CorpusPreTokens::counts() const {
  std::vector<PreTokenCount> all;
  for (const PreTokenCounts& shard : shards)
    shard.for_each([&](std::string_view pre_token, std::int64_t count, std::uint64_t) {
      all.push_back({pre_token, count});
    });
  return all;
}

CorpusPreTokens count_corpus_pre_tokens(const std::vector<std::filesystem::path>& files,
                                        const CountingOptions& options) {
  const std::size_t threads = options.threads > 0
                                  ? static_cast<std::size_t>(options.threads)
                                  : std::max(1u, std::thread::hardware_concurrency());
  return Counter(files, options, threads).run(threads);
}

}  // namespace kintsugi
