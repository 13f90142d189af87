#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpora/record_reader.h"
#include "data/tokenizer_training/bpe_trainer.h"

namespace kintsugi {

// A hash table with the count of each pre-token. Pre-tokens of up to 16 bytes, nearly all of them,
// are stored in the table itself, so that counting one touches one cache line; longer ones are
// stored in a separate buffer.
class PreTokenCounts {
 public:
  PreTokenCounts();

  void add(std::string_view pre_token, std::int64_t count = 1) {
    add(pre_token, count, hash(pre_token));
  }
  void add(std::string_view pre_token, std::int64_t count, std::uint64_t hash);
  void clear();  // keeps the memory

  std::size_t size() const { return short_used_ + long_.size(); }  // distinct pre-tokens
  std::size_t long_bytes() const { return text_.size(); }          // of the long pre-tokens

  // Calls callback(pre_token, count, hash) in arbitrary order. The views are valid until this
  // object changes.
  template <class Callback>
  void for_each(Callback&& callback) const;
  static std::uint64_t hash(std::string_view pre_token);

 private:
  static constexpr std::size_t kShort = 16;
  struct alignas(32) Short {
    char bytes[kShort] = {};  // zero-padded
    std::int64_t count = 0;
    std::uint32_t length = 0;  // 0: free
  };
  struct Long {
    std::uint64_t hash;
    std::size_t begin, length;
    std::int64_t count;
  };
  std::string_view pre_token(const Long& entry) const {
    return {text_.data() + entry.begin, entry.length};
  }
  void add_short(std::string_view pre_token, std::int64_t count, std::uint64_t hash);
  void add_long(std::string_view pre_token, std::int64_t count, std::uint64_t hash);
  void grow_short();
  void grow_long();

  std::vector<Short> short_;  // size a power of two, at most half full, like long_index_
  std::size_t short_used_ = 0;
  std::vector<std::uint32_t> long_index_;  // entry number from 1; 0: free
  std::vector<Long> long_;
  std::vector<char> text_;
};

template <class Callback>
void PreTokenCounts::for_each(Callback&& callback) const {
  for (const Short& entry : short_) {
    if (entry.length == 0) continue;
    const std::string_view pre_token(entry.bytes, entry.length);
    callback(pre_token, entry.count, hash(pre_token));
  }
  for (const Long& entry : long_) callback(pre_token(entry), entry.count, entry.hash);
}

struct CountingOptions {
  std::string pre_tokenizer = "gpt2";  // a family of data/tokenizers/pre_tokenizer.h
  DocumentFormat format;
  int threads = 0;                // 0: one per core
  std::int64_t sample_bytes = 0;  // decompressed, in proportion to file sizes; 0: all
  bool skip_invalid = false;      // skip and count malformed lines and damaged parts of files
  // Called by the calling thread a few times per second.
  std::function<void(std::int64_t bytes_read, std::int64_t bytes_total)> progress;
};

// The counted pre-tokens of a corpus, sharded by hash so that threads can add concurrently.
struct CorpusPreTokens {
  std::vector<PreTokenCounts> shards;
  std::int64_t text_bytes = 0, invalid_lines = 0;
  std::string first_invalid = {};
  std::vector<SkippedInput> skipped = {};

  std::vector<PreTokenCount> counts() const;  // views into the shards
};

// Pre-tokenizes and counts on several threads. Memory: the distinct pre-tokens once, plus about 30
// MB per thread. The counts do not depend on the number of threads.
CorpusPreTokens count_corpus_pre_tokens(const std::vector<std::filesystem::path>& files,
                                        const CountingOptions& options);

}  // namespace kintsugi
