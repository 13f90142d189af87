#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/yaml_reader.h"

namespace kintsugi {

// The most likely language of a text, and its probability as fastText computes it: up to 1.00001.
// The label is empty for a text without a word.
struct LanguageGuess {
  std::string_view label;  // without "__label__"; valid as long as the model
  float probability = 0;
};

// What the header of a fastText model says, as far as predictions depend on it.
struct FastTextArguments {
  std::int32_t dim = 16, word_ngrams = 1, loss = 3, bucket = 500'000, min_n = 1, max_n = 4;
};

// FNV-1a, 32 bits, of bytes that are sign-extended, as fastText's models need it.
std::uint32_t fasttext_hash(std::string_view text);

// Calls add(hash) for each n-gram of characters of "<word>". `marked` has the brackets.
template <class Add>
void for_each_ngram(std::string_view marked, int min_n, int max_n, Add&& add) {
  const auto continues = [&](std::size_t i) {
    return i < marked.size() && (marked[i] & 0xC0) == 0x80;
  };
  for (std::size_t i = 0; i < marked.size(); ++i) {
    if (continues(i)) continue;
    std::uint32_t hash = 2166136261;
    const auto hash_byte = [&](char c) {
      hash = (hash ^ static_cast<std::uint32_t>(static_cast<std::int8_t>(c))) * 16777619;
    };
    std::size_t j = i;
    for (int n = 1; n <= max_n && j < marked.size(); ++n) {
      do hash_byte(marked[j++]);
      while (continues(j));
      if (n >= min_n && !(n == 1 && (i == 0 || j == marked.size()))) add(hash);
    }
  }
}

// Takes the next word off a text; false: there is none.
bool next_fasttext_word(std::string_view& text, std::string_view& word);

// A classifier in a file of fastText, plain (.bin) or quantized (.ftz), trained by fastText or by
// `kintsugi data train-language-id`. The file is mapped, so that processes share its memory.
class LanguageModel {
 public:
  explicit LanguageModel(const std::filesystem::path& path);
  ~LanguageModel();

  const std::vector<std::string>& labels() const { return labels_; }
  // As `fasttext predict-prob` for the text as one line. Thread-safe.
  LanguageGuess guess(std::string_view text) const;

  struct Matrix;  // rows of weights, perhaps quantized

 private:
  class Reader;

  void read_dictionary(Reader& reader);
  void read_matrices(Reader& reader);
  void index_words();
  void build_tree(std::span<const std::int64_t> counts);
  std::int32_t id_of(std::string_view word, std::uint32_t hash) const;
  std::vector<std::int32_t> rows_of(std::string_view text) const;
  void add_bucket(std::uint64_t bucket, std::vector<std::int32_t>& rows) const;
  std::vector<float> hidden_of(std::span<const std::int32_t> rows) const;
  std::pair<std::size_t, float> best_of_all(std::span<const float> hidden) const;
  std::pair<std::size_t, float> best_of_tree(std::span<const float> hidden) const;

  std::string name_;
  MappedFile file_;
  FastTextArguments arguments_;
  std::vector<std::string_view> words_;  // in the file, the labels behind the others
  std::int32_t word_count_ = 0;
  std::vector<std::int32_t> index_;  // hash table of words_; -1: free
  bool pruned_ = false;
  std::vector<std::pair<std::int32_t, std::int32_t>> kept_;  // of a pruned model: bucket, row
  std::vector<std::string> labels_;
  std::unique_ptr<Matrix> input_, output_;
  std::vector<std::pair<std::int32_t, std::int32_t>> tree_;  // children of the inner nodes
};

// Keeps documents of some languages. The guess is made once for all filters that need it.
struct LanguageFilter {
  std::string model = {};              // a fastText model
  std::vector<std::string> keep = {};  // labels; empty: all
  double threshold = 0.65;             // of the probability

  // Reads the model. UserError: it has none of the labels to keep.
  void open();
  LanguageGuess guess(std::string_view text) const { return opened->guess(text); }
  std::string_view removed_by(const LanguageGuess& guess) const;

  std::shared_ptr<const LanguageModel> opened = {};
};

template <class V>
void describe(V& v, LanguageFilter& x) {
  v("model", x.model);
  v("keep", x.keep);
  v("threshold", x.threshold, between(0, 1));
}

}  // namespace kintsugi
