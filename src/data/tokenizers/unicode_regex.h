#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace kintsugi {

// A regular expression as Hugging Face tokenizers write them (Oniguruma, Ruby syntax, Unicode),
// compiled by PCRE2 with JIT. The expression is shared by copies; each copy matches for one thread.
class UnicodeRegex {
 public:
  // UserError if the expression is wrong or uses something that PCRE2 cannot say.
  explicit UnicodeRegex(const std::string& pattern);
  ~UnicodeRegex();
  UnicodeRegex(const UnicodeRegex& other);
  UnicodeRegex& operator=(const UnicodeRegex& other);
  UnicodeRegex(UnicodeRegex&&) noexcept;
  UnicodeRegex& operator=(UnicodeRegex&&) noexcept;

  const std::string& pattern() const;

  // The leftmost match in well-formed `text` that starts at `from` or later. An empty match right
  // at `not_empty_at` does not count.
  struct Match {
    std::size_t begin, end;
  };
  bool find(std::string_view text, std::size_t from, Match& match,
            std::size_t not_empty_at = std::string_view::npos);

 private:
  struct Code;
  struct Scratch;
  std::shared_ptr<const Code> code_;
  std::unique_ptr<Scratch> scratch_;
};

// The same expression in PCRE2's language. Where the two differ: nested classes, white space, word
// characters, \h, and a quantifier in braces followed by a plus.
std::string oniguruma_to_pcre2(std::string_view pattern);

}  // namespace kintsugi
