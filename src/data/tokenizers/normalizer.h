#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kintsugi {

// The "normalizer" of a tokenizer.json: transforms a text before it is pre-tokenized. Invalid UTF-8
// is copied unchanged. One object per thread.
class Normalizer {
 public:
  Normalizer();  // does nothing
  static Normalizer of_json(std::string_view json);
  ~Normalizer();
  Normalizer(const Normalizer&);
  Normalizer& operator=(const Normalizer&);
  Normalizer(Normalizer&&) noexcept;
  Normalizer& operator=(Normalizer&&) noexcept;

  bool empty() const { return steps_.empty(); }
  // The file name for error messages.
  void set_source(std::string source) { source_ = std::move(source); }
  // The result is valid until the next call, or until `text` is destroyed. UserError if the steps
  // make the text grow excessively.
  std::string_view apply(std::string_view text);

 private:
  struct Step;
  void add_steps(const nlohmann::ordered_json& json);
  std::vector<Step> steps_;
  std::string buffers_[2];
  std::string source_;
};

// Unicode normalization. Canonical: NFC or NFD, otherwise NFKC or NFKD.
std::string unicode_normalize(std::string_view valid_text, bool compose, bool canonical);

}  // namespace kintsugi
