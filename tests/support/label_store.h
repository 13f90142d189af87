#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data/stores/token_writer.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

struct LabelledText {
  std::string text;
  std::int32_t label = 0;
};

// Texts whose letters depend on the label: easy to learn.
inline std::vector<LabelledText> labelled_texts(int count, unsigned seed, int labels = 3) {
  std::mt19937 random(seed);
  std::vector<LabelledText> all;
  for (int i = 0; i < count; ++i) {
    LabelledText& one = all.emplace_back();
    one.label = static_cast<std::int32_t>(random() % static_cast<unsigned>(labels));
    for (unsigned length = 4 + random() % 10; length > 0; --length)
      one.text += static_cast<char>('a' + 6 * one.label + static_cast<int>(random() % 6));
  }
  return all;
}

// A store of kind classification with bytes as tokens. Returns its name.
inline std::string write_label_store(const std::filesystem::path& prefix,
                                     const std::vector<LabelledText>& texts,
                                     const std::vector<std::string>& labels) {
  TokenWriter writer(prefix, TokenType::U8, {.labels = true});
  StoreInfo info;
  for (const LabelledText& one : texts) {
    const std::vector<std::int32_t> ids(one.text.begin(), one.text.end());
    writer.append(ids);
    writer.end_document(one.label);
    info.longest = std::max<std::int64_t>(info.longest, std::ssize(ids));
    info.tokens += std::ssize(ids);
    ++info.documents;
  }
  info.shards = {writer.finish()};
  TokenWriter::publish(prefix);
  const auto tokenizer = load_tokenizer("bytes");
  info.tokenizer = tokenizer->fingerprint();
  info.tokenizer_description = tokenizer->description();
  info.vocab_size = tokenizer->vocab_size();
  info.bytes = info.tokens;
  info.kind = "classification";
  info.labels = labels;
  write_store_info(prefix, info);
  return prefix.string();
}

}  // namespace kintsugi
