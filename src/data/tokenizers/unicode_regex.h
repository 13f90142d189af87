#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// A regular expression over Unicode text, compiled by PCRE2 with JIT. Copies share the compiled
// expression; each thread needs its own copy.
class UnicodeRegex {
 public:
  // An expression of a Hugging Face tokenizer (Oniguruma, Ruby syntax). UserError if it is invalid
  // or has no equivalent in PCRE2.
  explicit UnicodeRegex(const std::string& pattern);
  // An expression in PCRE2's own syntax, where ^ and $ match at the ends of the text. Messages show
  // `pattern`, from which it was translated.
  static UnicodeRegex from_pcre2(const std::string& pattern, const std::string& translated);
  ~UnicodeRegex();
  UnicodeRegex(const UnicodeRegex& other);
  UnicodeRegex& operator=(const UnicodeRegex& other);
  UnicodeRegex(UnicodeRegex&&) noexcept;
  UnicodeRegex& operator=(UnicodeRegex&&) noexcept;

  const std::string& pattern() const;

  // Finds the leftmost match in well-formed `text` that starts at `from` or later. An empty match
  // at `not_empty_at` does not count.
  struct Match {
    std::size_t begin, end;
  };
  bool find(std::string_view text, std::size_t from, Match& match,
            std::size_t not_empty_at = std::string_view::npos);
  // The same with the groups: `groups` becomes the match and its groups, each {0, 0} if it took no
  // part. With `not_empty`, an empty match at `from` does not count.
  bool find_groups(std::string_view text, std::size_t from, bool not_empty,
                   std::vector<Match>& groups);

 private:
  struct Code;
  struct Scratch;
  explicit UnicodeRegex(std::shared_ptr<const Code> code);
  bool run(std::string_view text, std::size_t from, bool not_empty);
  std::shared_ptr<const Code> code_;
  std::unique_ptr<Scratch> scratch_;
};

// Converts an expression to the syntax of PCRE2. The two differ in nested classes, white space,
// word characters, \h, and a quantifier in braces followed by a plus.
std::string oniguruma_to_pcre2(std::string_view pattern);

}  // namespace kintsugi
