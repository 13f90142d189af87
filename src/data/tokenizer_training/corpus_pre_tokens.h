#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/corpora/document.h"
#include "data/tokenizer_training/bpe_trainer.h"
#include "data/tokenizer_training/pre_token_counts.h"

namespace kintsugi {

struct CountingOptions {
  std::string pre_tokenizer = "gpt2";  // a family of data/tokenizers/pre_tokenizer.h
  DocumentFormat format;
  int threads = 0;                // 0: one per core
  std::int64_t sample_bytes = 0;  // decompressed, in proportion to file sizes; 0: all
  // Called by the calling thread a few times per second.
  std::function<void(std::int64_t bytes_read, std::int64_t bytes_total)> progress;
};

// The counted pre-tokens of a corpus, sharded by hash so that threads can add concurrently.
struct CorpusPreTokens {
  std::vector<PreTokenCounts> shards;
  std::int64_t text_bytes = 0;

  std::vector<PreTokenCount> counts() const;  // views into the shards
};

// Pre-tokenizes and counts on several threads. Memory: the distinct pre-tokens once, plus about 30
// MB per thread. The counts do not depend on the number of threads.
CorpusPreTokens count_corpus_pre_tokens(const std::vector<std::filesystem::path>& files,
                                        const CountingOptions& options);

}  // namespace kintsugi
