#include "eval/filters.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/error.h"
#include "eval/python_regex.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

// Applies a function to each response that has a value.
class EachResponse : public ResponseFilter {
 public:
  explicit EachResponse(std::function<Response(const std::string&)> function)
      : function_(std::move(function)) {}
  std::vector<Response> apply(std::vector<Response> responses) override {
    for (Response& response : responses)
      if (response) response = function_(*response);
    return responses;
  }

 private:
  std::function<Response(const std::string&)> function_;
};

class TakeFirst : public ResponseFilter {
 public:
  std::vector<Response> apply(std::vector<Response> responses) override {
    if (responses.size() > 1) responses.resize(1);
    return responses;
  }
};

std::string select_match(PythonRegex& regex, const RegexFilterOptions& options,
                         const std::string& response) {
  const std::vector<std::vector<std::string>> matches = regex.find_all(response);
  if (matches.empty()) return options.fallback;
  const auto count = static_cast<std::int64_t>(matches.size());
  const std::int64_t index =
      options.group_select < 0 ? options.group_select + count : options.group_select;
  if (index < 0 || index >= count)
    user_error("group_select is {}, but '{}' has {} {} in a response", options.group_select,
               options.regex_pattern, count, count == 1 ? "match" : "matches");
  const std::vector<std::string>& groups = matches[static_cast<std::size_t>(index)];
  if (groups.size() == 1) return std::string(strip(groups.front()));
  for (const std::string& group : groups)
    if (!group.empty()) return std::string(strip(group));
  return std::string(strip(options.fallback));
}

template <class Drop>
std::string without(std::string_view text, Drop drop) {
  std::string kept;
  for (const char c : text)
    if (!drop(static_cast<unsigned char>(c))) kept += c;
  return kept;
}

// The words of a text without case, punctuation and articles, sorted.
std::vector<std::string> squad_words(std::string_view text) {
  const std::string plain = without(lower(text), is_ascii_punctuation);
  std::vector<std::string> words;
  for (const std::string_view word : split_at_spaces(plain))
    if (word != "a" && word != "an" && word != "the") words.emplace_back(word);
  std::sort(words.begin(), words.end());
  return words;
}

}  // namespace

std::unique_ptr<ResponseFilter> make_regex_filter(RegexFilterOptions options) {
  PythonRegex regex(options.regex_pattern);
  return std::make_unique<EachResponse>(
      [regex, options = std::move(options)](const std::string& response) mutable {
        return select_match(regex, options, response);
      });
}

std::unique_ptr<ResponseFilter> make_map_filter(std::map<std::string, std::string> mapping,
                                                Response default_value) {
  return std::make_unique<EachResponse>(
      [mapping = std::move(mapping), default_value](const std::string& response) {
        const auto found = mapping.find(response);
        return found == mapping.end() ? default_value : Response(found->second);
      });
}

std::unique_ptr<ResponseFilter> make_plain_filter(std::string_view function) {
  if (function == "take_first") return std::make_unique<TakeFirst>();
  if (function == "remove_whitespace")
    return std::make_unique<EachResponse>(
        [](const std::string& response) { return std::string(strip(response)); });
  if (function == "lowercase") return std::make_unique<EachResponse>(lower);
  if (function == "uppercase") return std::make_unique<EachResponse>(upper);
  user_error(
      "unknown filter '{}': give regex, remove_whitespace, lowercase, uppercase, map or take_first",
      function);
}

std::vector<Response> apply_filters(const ResponseFilters& filters,
                                    std::vector<Response> responses) {
  for (const auto& filter : filters) responses = filter->apply(std::move(responses));
  return responses;
}

struct ExactMatch::Rules {
  std::vector<PythonRegex> ignored;
  ExactMatchOptions options;

  std::string normal(std::string text) {
    for (PythonRegex& regex : ignored) text = regex.remove_all(text);
    if (options.ignore_case) text = lower(text);
    return without(text, [&](unsigned char c) {
      return (options.ignore_punctuation && is_ascii_punctuation(c)) ||
             (options.ignore_numbers && c >= '0' && c <= '9');
    });
  }
};

ExactMatch::ExactMatch(const ExactMatchOptions& options) : rules_(std::make_unique<Rules>()) {
  rules_->options = options;
  for (const std::string& pattern : options.regexes_to_ignore)
    rules_->ignored.emplace_back(pattern);
}
ExactMatch::~ExactMatch() = default;
ExactMatch::ExactMatch(ExactMatch&&) noexcept = default;

double ExactMatch::score(const Response& response, std::span<const std::string> targets) {
  if (!response) return 0;
  const std::string normal = rules_->normal(*response);
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return rules_->normal(target) == normal; })
             ? 1
             : 0;
}

double word_f1(std::string_view response, std::span<const std::string> targets) {
  const std::vector<std::string> words = squad_words(response);
  double best = 0;
  for (const std::string& target : targets) {
    const std::vector<std::string> right = squad_words(target);
    std::vector<std::string> common;
    std::set_intersection(words.begin(), words.end(), right.begin(), right.end(),
                          std::back_inserter(common));
    const double either = static_cast<double>(words.size() + right.size());
    // Two texts without words are equal.
    best = std::max(best, either == 0 ? 1 : 2 * static_cast<double>(common.size()) / either);
  }
  return best;
}

}  // namespace kintsugi
