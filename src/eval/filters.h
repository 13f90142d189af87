#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// What lm-evaluation-harness does with a generated text before and while it is compared.

// A response without a value never matches (see `map`).
using Response = std::optional<std::string>;

// One step of a filter, applied to the responses to one document.
class ResponseFilter {
 public:
  virtual ~ResponseFilter() = default;
  virtual std::vector<Response> apply(std::vector<Response> responses) = 0;
};

struct RegexFilterOptions {
  std::string regex_pattern = "#### (\\-?[0-9\\.\\,]+)";
  std::int64_t group_select = 0;  // which match; negative: from the end
  std::string fallback = "[invalid]";
};
// The selected match without white space at its ends. An expression with several groups gives the
// first that is not empty. UserError if group_select is beyond the matches.
std::unique_ptr<ResponseFilter> make_regex_filter(RegexFilterOptions options);
// The value of the response; the default if it has none.
std::unique_ptr<ResponseFilter> make_map_filter(std::map<std::string, std::string> mapping,
                                                Response default_value);
// remove_whitespace (at both ends), lowercase, uppercase, take_first; UserError for another name.
std::unique_ptr<ResponseFilter> make_plain_filter(std::string_view function);

using ResponseFilters = std::vector<std::unique_ptr<ResponseFilter>>;
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
  ~ExactMatch();
  ExactMatch(ExactMatch&&) noexcept;

  // 1 if the response equals any of the targets, else 0.
  double score(const Response& response, std::span<const std::string> targets);

 private:
  struct Rules;
  std::unique_ptr<Rules> rules_;
};

// The F1 of words as SQuAD defines it: without case, ASCII punctuation and English articles. The
// best of the targets counts.
double word_f1(std::string_view response, std::span<const std::string> targets);

}  // namespace kintsugi
