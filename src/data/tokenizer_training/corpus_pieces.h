#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/corpora/document.h"
#include "data/tokenizer_training/bpe_trainer.h"
#include "data/tokenizer_training/piece_counts.h"

namespace kintsugi {

struct CountingOptions {
  std::string pre_tokenizer = "gpt2";  // a family of data/tokenizers/pre_tokenizer.h
  DocumentFormat format;
  int threads = 0;                // 0: one per processor
  std::int64_t sample_bytes = 0;  // decompressed, from files in proportion to their sizes; 0: all
  // From the calling thread, a few times a second.
  std::function<void(std::int64_t bytes_read, std::int64_t bytes_total)> progress;
};

// The pieces of a corpus, split by their hash so that threads can add at once.
struct CorpusPieces {
  std::vector<PieceCounts> shards;
  std::int64_t text_bytes = 0;

  std::vector<PieceCount> pieces() const;  // views into the shards
};

// Pre-tokenizes and counts on all cores. Memory: the distinct pieces once, plus some 30 MB for each
// thread. The counts do not depend on the number of threads.
CorpusPieces count_corpus_pieces(const std::vector<std::filesystem::path>& files,
                                 const CountingOptions& options);

}  // namespace kintsugi
