// Training a tokenizer: seconds for counting the pieces of a corpus and for learning the merges.
//   build/bench_train_tokenizer --input corpus.txt [--vocab 32000] [--threads 0]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "data/corpora/input_files.h"
#include "data/tokenizer_training/bpe_trainer.h"
#include "data/tokenizer_training/corpus_pre_tokens.h"

using namespace kintsugi;

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the training of a byte-level BPE tokenizer");
  std::vector<std::string> inputs;
  std::string family = "gpt2";
  std::int64_t vocab = 32000, min_frequency = 2;
  int threads = 0, rounds = 3;
  app.add_option("--input", inputs)->required();
  app.add_option("--vocab", vocab);
  app.add_option("--min-frequency", min_frequency);
  app.add_option("--pre-tokenizer", family);
  app.add_option("--threads", threads);
  app.add_option("--rounds", rounds);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto files = expand_inputs(inputs);
    fmt::print("{:>10}{:>12}{:>10}{:>10}{:>12}{:>12}\n", "MB", "pieces", "counting", "MB/s",
               "merging", "bytes/token");
    for (int round = 0; round < rounds; ++round) {
      auto begin = std::chrono::steady_clock::now();
      const CorpusPreTokens corpus = count_corpus_pre_tokens(
          files, {.pre_tokenizer = family, .format = {}, .threads = threads, .progress = {}});
      const auto pieces = corpus.counts();
      const double counting_s = seconds_since(begin);
      begin = std::chrono::steady_clock::now();
      const TrainedBpe bpe = train_bpe(pieces, {.vocab_size = vocab,
                                                .min_frequency = min_frequency,
                                                .special_tokens = {"<|endoftext|>"},
                                                .progress = {}});
      const double megabytes = static_cast<double>(corpus.text_bytes) / 1e6;
      fmt::print("{:>10.1f}{:>12}{:>8.2f} s{:>10.1f}{:>10.2f} s{:>12.3f}\n", megabytes,
                 pieces.size(), counting_s, megabytes / counting_s, seconds_since(begin),
                 static_cast<double>(bpe.corpus_bytes) / static_cast<double>(bpe.corpus_tokens));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
