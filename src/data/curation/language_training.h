#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/progress.h"
#include "data/corpora/input_files.h"
#include "data/curation/language_id.h"

namespace kintsugi {

// Documents of known languages. A long plain text counts as several.
struct LanguageCorpus {
  struct Document {
    std::int32_t label = 0;
    std::uint64_t begin = 0, length = 0;  // in `text`
    bool held_out = false;
  };
  std::vector<std::string> labels = {};
  std::string text = {};
  std::vector<Document> documents = {};
  std::int64_t invalid_lines = 0;
  std::string first_invalid = {};
  std::vector<SkippedInput> skipped = {};

  std::string_view text_of(const Document& document) const {
    return std::string_view(text).substr(document.begin, document.length);
  }
};

struct LanguageFiles {
  std::string label;
  std::vector<std::filesystem::path> files;
};

struct LanguageCorpusOptions {
  std::string text_key = "text";
  std::int64_t label_bytes = 20'000'000;  // most text of each label, from all its files
  double held_out = 0.1;                  // fraction of the documents of each label
  bool skip_invalid = false;
};

// Reads the documents, each text once, and chooses the held-out ones by their hashes.
LanguageCorpus read_language_corpus(const std::vector<LanguageFiles>& languages,
                                    const LanguageCorpusOptions& options);

struct LanguageTrainingOptions {
  FastTextArguments arguments = {};
  int epochs = 5;
  double learning_rate = 0.2;
  int threads = 0;             // 0: one per core
  ProgressCall progress = {};  // in pieces of text
};

// Cuts a document where words end into pieces of 50 to 400 bytes, of which a model learns.
std::vector<std::string_view> language_pieces(std::string_view text);

// Trains fastText's classifier (the mean of the vectors of n-grams, a softmax) on the documents
// that are not held out, by Adagrad on batches. Returns the content of its file. The result does
// not depend on the number of threads.
std::string train_language_model(const LanguageCorpus& corpus,
                                 const LanguageTrainingOptions& options);

}  // namespace kintsugi
