#include "data/tokenizer_training/corpus_pre_tokens.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/hash.h"
#include "data/corpora/record_reader.h"
#include "data/tokenizers/normalizer.h"
#include "data/tokenizers/pre_tokenizer.h"

namespace kintsugi {
namespace {

constexpr std::size_t kShards = 32;
// A thread flushes its local counts at this size; most text consists of a few thousand words.
constexpr std::size_t kLocalPreTokens = std::size_t{1} << 18, kLocalBytes = std::size_t{1} << 23;

RecordReader::Options reader_options(const CountingOptions& options) {
  RecordReader::Options reader;
  reader.keys = options.format.keys();
  reader.skip_damaged = options.skip_invalid;
  return reader;
}

class Counter {
 public:
  Counter(const std::vector<std::filesystem::path>& files, const CountingOptions& options,
          std::size_t threads)
      : options_(options),
        source_(files, threads, options.sample_bytes, reader_options(options)),
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
    result_.skipped = source_.take_skipped();
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
        if (batch.objects) {
          if (!parse(text, batch.file, line, document)) continue;
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

  // False if the line is malformed and skipped.
  bool parse(std::string_view line, const std::string& file, std::uint64_t number,
             Document& document) {
    try {
      parse_document(line, options_.format, file, number, document);
      return true;
    } catch (const UserError& error) {
      if (!options_.skip_invalid) throw;
      const std::lock_guard lock(mutex_);
      if (result_.invalid_lines++ == 0) result_.first_invalid = error.what();
      return false;
    }
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

PreTokenCounts::PreTokenCounts() : short_(1024), long_index_(1024) {}

std::uint64_t PreTokenCounts::hash(std::string_view pre_token) { return hash64(pre_token); }

void PreTokenCounts::add(std::string_view pre_token, std::int64_t count, std::uint64_t hash) {
  if (pre_token.empty()) return;
  if (pre_token.size() <= kShort)
    add_short(pre_token, count, hash);
  else
    add_long(pre_token, count, hash);
}

void PreTokenCounts::add_short(std::string_view pre_token, std::int64_t count, std::uint64_t hash) {
  Short entry_to_add;
  std::memcpy(entry_to_add.bytes, pre_token.data(), pre_token.size());
  const auto length = static_cast<std::uint32_t>(pre_token.size());
  const std::size_t mask = short_.size() - 1;
  std::size_t at = hash & mask;
  for (; short_[at].length != 0; at = (at + 1) & mask) {
    Short& entry = short_[at];
    if (entry.length == length && std::memcmp(entry.bytes, entry_to_add.bytes, kShort) == 0) {
      entry.count += count;
      return;
    }
  }
  entry_to_add.length = length;
  entry_to_add.count = count;
  short_[at] = entry_to_add;
  if (2 * ++short_used_ > short_.size()) grow_short();
}

void PreTokenCounts::add_long(std::string_view text, std::int64_t count, std::uint64_t hash) {
  const std::size_t mask = long_index_.size() - 1;
  std::size_t at = hash & mask;
  for (; long_index_[at] != 0; at = (at + 1) & mask) {
    Long& entry = long_[long_index_[at] - 1];
    if (entry.hash == hash && pre_token(entry) == text) {
      entry.count += count;
      return;
    }
  }
  if (long_.size() + 1 >= std::numeric_limits<std::uint32_t>::max())
    user_error(
        "the corpus has more than four billion distinct long pre-tokens; train on a sample "
        "(--sample-bytes)");
  long_.push_back({hash, text_.size(), text.size(), count});
  text_.insert(text_.end(), text.begin(), text.end());
  long_index_[at] = static_cast<std::uint32_t>(long_.size());
  if (2 * long_.size() > long_index_.size()) grow_long();
}

void PreTokenCounts::grow_short() {
  std::vector<Short> old(2 * short_.size());
  old.swap(short_);
  const std::size_t mask = short_.size() - 1;
  for (const Short& entry : old) {
    if (entry.length == 0) continue;
    std::size_t at = hash({entry.bytes, entry.length}) & mask;
    while (short_[at].length != 0) at = (at + 1) & mask;
    short_[at] = entry;
  }
}

void PreTokenCounts::grow_long() {
  long_index_.assign(2 * long_index_.size(), 0);
  const std::size_t mask = long_index_.size() - 1;
  for (std::size_t i = 0; i < long_.size(); ++i) {
    std::size_t at = long_[i].hash & mask;
    while (long_index_[at] != 0) at = (at + 1) & mask;
    long_index_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

void PreTokenCounts::clear() {
  std::fill(short_.begin(), short_.end(), Short{});
  std::fill(long_index_.begin(), long_index_.end(), 0);
  short_used_ = 0;
  long_.clear();
  text_.clear();
}

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
