#include "eval/python_regex.h"

#include "core/error.h"
#include "data/tokenizers/unicode.h"

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

}  // namespace kintsugi
