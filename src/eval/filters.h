#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/unicode_regex.h"

namespace kintsugi {

// A regular expression of Python's `re` module, as task files have them.
class PythonRegex {
 public:
  explicit PythonRegex(const std::string& pattern);  // UserError if it is invalid

  // re.finditer(): for each match its groups, or the whole match if the expression has no group. A
  // group that took no part is empty.
  std::vector<std::vector<std::string>> find_all(std::string_view text);
  std::string remove_all(std::string_view text);  // re.sub(pattern, "", text)

 private:
  template <class Use>
  void for_each_match(std::string_view text, Use&& use);
  UnicodeRegex regex_;
};

// Converts an expression to the syntax of PCRE2. The two differ in white space, \Z, \v, \u, and
// {,n}. UserError for an escape that Python does not know.
std::string python_to_pcre2(std::string_view pattern);

// What lm-evaluation-harness does with a generated text before and while it is compared.

// A response without a value never matches (see `map`).
using Response = std::optional<std::string>;

// One step of a filter, applied to the responses to one document.
using ResponseFilter = std::function<std::vector<Response>(std::vector<Response>)>;

struct RegexFilterOptions {
  std::string regex_pattern = "#### (\\-?[0-9\\.\\,]+)";
  std::int64_t group_select = 0;  // which match; negative: from the end
  std::string fallback = "[invalid]";
};
// The selected match without white space at its ends. An expression with several groups gives the
// first that is not empty. UserError if group_select is beyond the matches.
ResponseFilter make_regex_filter(RegexFilterOptions options);
// The value of the response; the default if it has none.
ResponseFilter make_map_filter(std::map<std::string, std::string> mapping, Response default_value);
// remove_whitespace (at both ends), lowercase, uppercase, take_first; UserError for another name.
ResponseFilter make_plain_filter(std::string_view function);

using ResponseFilters = std::vector<ResponseFilter>;
std::vector<Response> apply_filters(const ResponseFilters& filters,
                                    std::vector<Response> responses);

struct ExactMatchOptions {
  std::vector<std::string> regexes_to_ignore = {};
  bool ignore_case = false;
  bool ignore_punctuation = false;  // of ASCII
  bool ignore_numbers = false;      // the digits of ASCII
};
class ExactMatch {
 public:
  explicit ExactMatch(const ExactMatchOptions& options);  // UserError for an invalid expression

  // 1 if the response equals any of the targets, else 0.
  double score(const Response& response, std::span<const std::string> targets);

 private:
  std::string normal(std::string text);

  std::vector<PythonRegex> ignored_;
  ExactMatchOptions options_;
};

// The F1 of words as SQuAD defines it: without case, ASCII punctuation and English articles. The
// best of the targets counts.
double word_f1(std::string_view response, std::span<const std::string> targets);

}  // namespace kintsugi
