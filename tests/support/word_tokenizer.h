#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// A simple tokenizer: one id per three bytes of text that do not cross a space. Ids are larger than
// a byte, and a text that is split at the wrong position gives other ids. Id 0 ends documents.
class WordTokenizer : public Tokenizer {
 public:
  explicit WordTokenizer(std::int64_t vocab_size = 50'000) : vocab_size_(vocab_size) {}
  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<WordTokenizer>(*this);
  }
  std::string description() const override { return "test words"; }
  std::int64_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> end_of_document() const override { return 0; }
  std::optional<std::int32_t> token_id(std::string_view) const override { return {}; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids, SpecialTokens) override {
    std::int64_t id = 1;
    int length = 0;
    for (const char c : text) {
      id = (id * 257 + static_cast<unsigned char>(c)) % (vocab_size_ - 1);
      if (++length == 3 || c == ' ' || c == '\n') {
        ids.push_back(static_cast<std::int32_t>(id + 1));
        id = 1;
        length = 0;
      }
    }
    if (length > 0) ids.push_back(static_cast<std::int32_t>(id + 1));
  }
  void decode(std::span<const std::int32_t>, std::string&, SpecialTokens) const override {}
  std::int64_t bytes_of(std::int32_t) const override { return 3; }
  std::vector<File> files(std::int64_t) const override { return {}; }
  std::string fingerprint() const override { return "words " + std::to_string(vocab_size_); }

 private:
  std::int64_t vocab_size_;
};

}  // namespace kintsugi
