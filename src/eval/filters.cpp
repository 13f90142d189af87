#include "eval/filters.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

// str.isspace(), for use inside a class.
constexpr std::string_view kPythonSpace = "\\x{9}-\\x{D}\\x{1C}-\\x{20}\\x{85}\\p{Z}";
constexpr std::string_view kNotPythonSpace =
    "\\x{0}-\\x{8}\\x{E}-\\x{1B}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{"
    "10FFFF}";

class PythonTranslator {
 public:
  explicit PythonTranslator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        character_class();
      } else if (in_.substr(at_, 2) == "(*") {
        unsupported("a quantifier without an operand");
      } else if (in_.substr(at_, 2) == "{,") {
        out_ += is_upper_bound() ? "{0," : "{,";
        at_ += 2;
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported(std::string_view what) {
    user_error("the regular expression '{}' has {}, which is not supported", in_, what);
  }

  // Whether {,n} or {,} begins here.
  bool is_upper_bound() const {
    const std::size_t end = in_.find_first_not_of("0123456789", at_ + 2);
    return end != std::string_view::npos && in_[end] == '}';
  }

  void escape(bool in_class) {
    if (at_ + 1 >= in_.size()) unsupported("a backslash at its end");
    const char c = in_[at_ + 1];
    at_ += 2;
    const auto set = [&](std::string_view members) {
      out_.append(in_class ? "" : "[").append(members).append(in_class ? "" : "]");
    };
    switch (c) {
      case 's':
        return set(kPythonSpace);
      case 'S':
        return set(kNotPythonSpace);
      case 'w':
        return set("\\p{L}\\p{N}_");
      case 'Z':
        if (in_class) unsupported("\\Z inside a class");
        out_ += "\\z";
        return;
      case 'v':
        out_ += "\\x{B}";
        return;
      case 'x':
        return hexadecimal(2);
      case 'u':
        return hexadecimal(4);
      case 'U':
        return hexadecimal(8);
      default:
        other_escape(c, in_class);
    }
  }

  void other_escape(char c, bool in_class) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const std::string_view known = in_class ? "abfnrtdDW" : "abfnrtdDWAB";
    if (letter && known.find(c) == std::string_view::npos) unsupported(std::string("\\") + c);
    out_ += '\\';
    out_ += c;
  }

  void hexadecimal(std::size_t digits) {
    const std::string_view number = in_.substr(at_, digits);
    if (number.size() < digits ||
        number.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      unsupported("an incomplete escape");
    out_.append("\\x{").append(number).append("}");
    at_ += digits;
  }

  void character_class() {
    out_ += '[';
    ++at_;
    if (at_ < in_.size() && in_[at_] == '^') out_ += in_[at_++];
    for (bool first = true;; first = false) {
      if (at_ >= in_.size()) unsupported("a class without an end");
      const char c = in_[at_];
      if (c == '\\') {
        escape(true);
        continue;
      }
      ++at_;
      if (c == '[' || (c == ']' && first)) out_ += '\\';
      out_ += c;
      if (c == ']' && !first) return;
    }
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string python_to_pcre2(std::string_view pattern) {
  if (valid_utf8_prefix(pattern) != pattern.size())
    user_error("the regular expression '{}' is not UTF-8", replace_invalid_utf8(pattern));
  return PythonTranslator(pattern).run();
}

PythonRegex::PythonRegex(const std::string& pattern)
    : regex_(UnicodeRegex::from_pcre2(pattern, python_to_pcre2(pattern))) {}

// Two empty matches never have the same position; an empty match may follow another match.
template <class Use>
void PythonRegex::for_each_match(std::string_view text, Use&& use) {
  std::vector<UnicodeRegex::Match> groups;
  bool after_empty = false;
  for (std::size_t at = 0; regex_.find_groups(text, at, after_empty, groups);) {
    use(groups);
    at = groups[0].end;
    after_empty = groups[0].begin == groups[0].end;
  }
}

std::vector<std::vector<std::string>> PythonRegex::find_all(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::vector<std::vector<std::string>> matches;
  for_each_match(valid, [&](const std::vector<UnicodeRegex::Match>& groups) {
    std::vector<std::string>& match = matches.emplace_back();
    for (std::size_t i = groups.size() > 1 ? 1 : 0; i < groups.size(); ++i)
      match.push_back(valid.substr(groups[i].begin, groups[i].end - groups[i].begin));
  });
  return matches;
}

std::string PythonRegex::remove_all(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::string result;
  std::size_t kept = 0;
  for_each_match(valid, [&](const std::vector<UnicodeRegex::Match>& groups) {
    result += valid.substr(kept, groups[0].begin - kept);
    kept = groups[0].end;
  });
  return result + valid.substr(kept);
}

// ---- filters

namespace {

// Applies a function to each response that has a value.
template <class Function>
ResponseFilter each_response(Function function) {
  return [function = std::move(function)](std::vector<Response> responses) mutable {
    for (Response& response : responses)
      if (response) response = function(*response);
    return responses;
  };
}

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

ResponseFilter make_regex_filter(RegexFilterOptions options) {
  PythonRegex regex(options.regex_pattern);
  return each_response(
      [regex, options = std::move(options)](const std::string& response) mutable -> Response {
        return select_match(regex, options, response);
      });
}

ResponseFilter make_map_filter(std::map<std::string, std::string> mapping, Response default_value) {
  return each_response([mapping = std::move(mapping), default_value](const std::string& response) {
    const auto found = mapping.find(response);
    return found == mapping.end() ? default_value : Response(found->second);
  });
}

ResponseFilter make_plain_filter(std::string_view function) {
  if (function == "take_first")
    return [](std::vector<Response> responses) {
      if (responses.size() > 1) responses.resize(1);
      return responses;
    };
  if (function == "remove_whitespace")
    return each_response([](const std::string& response) { return std::string(strip(response)); });
  if (function == "lowercase") return each_response(lower);
  if (function == "uppercase") return each_response(upper);
  user_error(
      "unknown filter '{}': give regex, remove_whitespace, lowercase, uppercase, map or take_first",
      function);
}

std::vector<Response> apply_filters(const ResponseFilters& filters,
                                    std::vector<Response> responses) {
  for (const ResponseFilter& filter : filters) responses = filter(std::move(responses));
  return responses;
}

ExactMatch::ExactMatch(const ExactMatchOptions& options) : options_(options) {
  for (const std::string& pattern : options.regexes_to_ignore) ignored_.emplace_back(pattern);
}

std::string ExactMatch::normal(std::string text) {
  for (PythonRegex& regex : ignored_) text = regex.remove_all(text);
  if (options_.ignore_case) text = lower(text);
  return without(text, [&](unsigned char c) {
    return (options_.ignore_punctuation && is_ascii_punctuation(c)) ||
           (options_.ignore_numbers && c >= '0' && c <= '9');
  });
}

double ExactMatch::score(const Response& response, std::span<const std::string> targets) {
  if (!response) return 0;
  const std::string wanted = normal(*response);
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return normal(target) == wanted; });
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
