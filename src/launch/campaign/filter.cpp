#include "launch/campaign/filter.h"

#include <string_view>
#include <variant>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr int kMostBrackets = 50;

using FilterValue = std::variant<bool, double, std::string>;

std::string kind_of(const FilterValue& value) {
  return value.index() == 0 ? "a condition" : value.index() == 1 ? "a number" : "a text";
}

FilterValue value_of(const std::string& text) {
  try {
    return parse_real(text);
  } catch (const UserError&) {
  }
  try {
    return static_cast<double>(parse_count(text));
  } catch (const UserError&) {
    return text;
  }
}

// By recursive descent: or, and, not, comparison, sum, product, value.
class FilterParser {
 public:
  FilterParser(const std::string& text, const FilterValues& values) : text_(text), values_(values) {
    next();
  }

  bool run() {
    const bool result = condition(either());
    if (!word_.empty() || quoted_) wrong(fmt::format("'{}' is not expected", word_));
    return result;
  }

 private:
  [[noreturn]] void wrong(const std::string& why) const {
    user_error("filter '{}': {}", text_, why);
  }

  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  }

  // Reads the next word, text in quotes or sign.
  void next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    quoted_ = false;
    word_.clear();
    if (at_ == text_.size()) return;
    const char first = text_[at_];
    if (first == '"' || first == '\'') {
      const std::size_t end = text_.find(first, at_ + 1);
      if (end == std::string::npos) wrong("a quotation mark is missing");
      quoted_ = true;
      word_ = text_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
    } else if (is_name(first)) {
      const std::size_t begin = at_;
      while (at_ < text_.size() && (is_name(text_[at_]) || is_exponent(begin))) ++at_;
      word_ = text_.substr(begin, at_ - begin);
    } else {
      const std::string_view two = std::string_view(text_).substr(at_, 2);
      word_ = two == "==" || two == "!=" || two == "<=" || two == ">=" ? std::string(two)
                                                                       : std::string(1, first);
      at_ += word_.size();
    }
  }
  // The sign within 1e-3.
  bool is_exponent(std::size_t begin) const {
    const char first = text_[begin];
    return (first == '.' || (first >= '0' && first <= '9')) && at_ > begin &&
           (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E') &&
           (text_[at_] == '-' || text_[at_] == '+');
  }

  bool take(std::string_view word) {
    if (quoted_ || word_ != word) return false;
    next();
    return true;
  }

  bool condition(const FilterValue& value) const {
    if (const bool* truth = std::get_if<bool>(&value)) return *truth;
    wrong(fmt::format("a condition is expected, found {}", kind_of(value)));
  }
  double number(const FilterValue& value) const {
    if (const double* number = std::get_if<double>(&value)) return *number;
    wrong(fmt::format("a number is expected, found {}", kind_of(value)));
  }

  FilterValue either() {
    FilterValue left = both();
    while (take("or")) {
      const bool right = condition(both());
      left = condition(left) || right;
    }
    return left;
  }
  FilterValue both() {
    FilterValue left = negation();
    while (take("and")) {
      const bool right = condition(negation());
      left = condition(left) && right;
    }
    return left;
  }
  FilterValue negation() {
    bool turned = false, any = false;
    while (take("not")) {
      turned = !turned;
      any = true;
    }
    FilterValue value = comparison();
    return any ? FilterValue(condition(value) != turned) : value;
  }

  FilterValue comparison() {
    const FilterValue left = sum();
    for (const char* sign : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (!take(sign)) continue;
      const FilterValue right = sum();
      if (left.index() != right.index())
        wrong(fmt::format("{} is compared with {}", kind_of(left), kind_of(right)));
      const std::string_view word = sign;
      if (word == "==") return left == right;
      if (word == "!=") return left != right;
      const double a = number(left), b = number(right);
      return word == "<=" ? a <= b : word == ">=" ? a >= b : word == "<" ? a < b : a > b;
    }
    return left;
  }

  FilterValue sum() {
    FilterValue left = product();
    for (;;) {
      if (take("+"))
        left = number(left) + number(product());
      else if (take("-"))
        left = number(left) - number(product());
      else
        return left;
    }
  }
  FilterValue product() {
    FilterValue left = value();
    for (;;) {
      if (take("*"))
        left = number(left) * number(value());
      else if (take("/"))
        left = number(left) / number(value());
      else
        return left;
    }
  }

  FilterValue value() {
    if (quoted_) {
      const std::string text = word_;
      next();
      return text;
    }
    if (take("(")) {
      if (++depth_ > kMostBrackets) wrong("it has too many brackets");
      FilterValue inner = either();
      if (!take(")")) wrong("a closing bracket is missing");
      --depth_;
      return inner;
    }
    if (word_.empty()) wrong("it ends where a value is expected");
    if (!is_name(word_.front())) wrong(fmt::format("a value is expected, found '{}'", word_));
    const std::string word = word_;
    next();
    if (const auto text = values_(word)) return value_of(*text);
    FilterValue constant = value_of(word);
    if (constant.index() != 1)
      wrong(fmt::format("the sweep does not set '{}'; write texts in quotes", word));
    return constant;
  }

  const std::string& text_;
  const FilterValues& values_;
  std::size_t at_ = 0;
  std::string word_;
  bool quoted_ = false;
  int depth_ = 0;
};

}  // namespace

bool filter_holds(const std::string& condition, const FilterValues& values) {
  return FilterParser(condition, values).run();
}

}  // namespace kintsugi
