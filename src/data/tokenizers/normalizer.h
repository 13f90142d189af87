#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kintsugi {

// The "normalizer" of a tokenizer.json: what is done to a text before it is cut into pieces. Bytes
// that are no UTF-8 pass through. An object serves one thread.
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
  // The file that errors name.
  void set_source(std::string source) { source_ = std::move(source); }
  // Valid until the next call, or until `text` goes. UserError if the steps make the text grow
  // without measure.
  std::string_view apply(std::string_view text);

 private:
  struct Step;
  friend class NormalizerReader;
  std::vector<Step> steps_;
  std::string buffers_[2];
  std::string source_;
};

// Unicode normalization forms; canonical: NFC or NFD, else NFKC or NFKD.
std::string unicode_normalize(std::string_view valid_text, bool compose, bool canonical);

}  // namespace kintsugi
