#include "eval/task_template.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

struct TemplateFunction {
  std::string_view name;
  std::size_t least, most;  // arguments
  EvalDocument (*apply)(const EvalDocument& value, const std::vector<EvalDocument>& arguments);
};

using Value = EvalDocument;
using Arguments = std::vector<Value>;

std::string kind_in_words(const Value& value) {
  if (value.is_string()) return "a string";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "a map";
  return value.is_null() ? "null" : "a number";
}

const std::string& string_of(const Value& value, std::string_view use) {
  if (!value.is_string()) user_error("{} needs a string, not {}", use, kind_in_words(value));
  return value.get_ref<const std::string&>();
}

std::string from_code_points(std::vector<char32_t>::const_iterator begin,
                             std::vector<char32_t>::const_iterator end) {
  std::string text;
  for (; begin != end; ++begin) utf8_append(text, *begin);
  return text;
}

Value split_text(const std::string& text, const Arguments& arguments) {
  Value pieces = Value::array();
  if (arguments.empty()) {
    for (const std::string_view word : split_at_spaces(text)) pieces.push_back(word);
    return pieces;
  }
  const std::string& separator = string_of(arguments[0], "split");
  if (separator.empty()) user_error("split needs a separator that is not empty");
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(separator, at);
    pieces.push_back(text.substr(at, found - at));
    if (found == std::string::npos) return pieces;
    at = found + separator.size();
  }
}

Value index_of(const Value& value, const Arguments& arguments) {
  if (value.is_array()) {
    const auto found = std::find(value.begin(), value.end(), arguments[0]);
    if (found != value.end()) return found - value.begin();
    user_error("index: the list does not have the value");
  }
  const std::string& text = string_of(value, "index");
  const std::size_t found = text.find(string_of(arguments[0], "index"));
  if (found == std::string::npos) user_error("index: the text does not have the value");
  return count_code_points(std::string_view(text).substr(0, found));
}

Value replace_text(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) user_error("replace needs a text that is not empty");
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(from, at);
    result.append(text, at, found - at);
    if (found == std::string::npos) return result;
    result += to;
    at = found + from.size();
  }
}

Value join_list(const Value& value, const Arguments& arguments) {
  if (!value.is_array()) user_error("join needs a list, not {}", kind_in_words(value));
  std::string text;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (i > 0 && !arguments.empty()) text += string_of(arguments[0], "join");
    text += python_text(value[i]);
  }
  return text;
}

Value strip_value(const Value& value, const Arguments&) { return strip(string_of(value, "strip")); }
Value lower_value(const Value& value, const Arguments&) { return lower(string_of(value, "lower")); }
Value upper_value(const Value& value, const Arguments&) { return upper(string_of(value, "upper")); }

constexpr TemplateFunction kTemplateMethods[] = {
    {"split", 0, 1,
     [](const Value& value, const Arguments& arguments) {
       return split_text(string_of(value, "split"), arguments);
     }},
    {"index", 1, 1, index_of},
    {"strip", 0, 0, strip_value},
    {"lower", 0, 0, lower_value},
    {"upper", 0, 0, upper_value},
    {"replace", 2, 2, [](const Value& value, const Arguments& arguments) {
       return replace_text(string_of(value, "replace"), string_of(arguments[0], "replace"),
                           string_of(arguments[1], "replace"));
     }}};
constexpr TemplateFunction kTemplateFilters[] = {{"join", 0, 1, join_list},
                                                 {"trim", 0, 0, strip_value},
                                                 {"lower", 0, 0, lower_value},
                                                 {"upper", 0, 0, upper_value}};

template <std::size_t n>
const TemplateFunction* find_function(const TemplateFunction (&functions)[n],
                                      std::string_view name) {
  const auto* found = std::find_if(std::begin(functions), std::end(functions),
                                   [&](const TemplateFunction& one) { return one.name == name; });
  return found == std::end(functions) ? nullptr : found;
}

// null if there is none
const TemplateFunction* find_method(std::string_view name) {
  return find_function(kTemplateMethods, name);
}
const TemplateFunction* find_filter(std::string_view name) {
  return find_function(kTemplateFilters, name);
}

// What expressions of templates compute, as Python does. All throw UserError for values of another
// kind.
EvalDocument added(const EvalDocument& a, const EvalDocument& b) {
  if (a.is_string() && b.is_string())
    return a.get_ref<const std::string&>() + b.get_ref<const std::string&>();
  if (a.is_array() && b.is_array()) {
    EvalDocument both = a;
    both.insert(both.end(), b.begin(), b.end());
    return both;
  }
  if (a.is_number_integer() && b.is_number_integer()) {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(a.get<std::int64_t>(), b.get<std::int64_t>(), &sum))
      user_error("a sum is too large");
    return sum;
  }
  user_error("+ needs two strings, two lists or two whole numbers, not {} and {}", kind_in_words(a),
             kind_in_words(b));
}

EvalDocument attribute_of(const EvalDocument& value, const std::string& name) {
  if (value.is_object() && value.contains(name)) return value[name];
  user_error("{} has no attribute '{}'", kind_in_words(value), name);
}

EvalDocument item_at(const EvalDocument& value, const EvalDocument& index) {
  if (value.is_object()) return attribute_of(value, string_of(index, "the key of a map"));
  if (!index.is_number_integer()) user_error("an index is {}", kind_in_words(index));
  if (!value.is_array() && !value.is_string())
    user_error("{} has no elements", kind_in_words(value));
  const std::vector<char32_t> points = value.is_string()
                                           ? code_points_of(value.get_ref<const std::string&>())
                                           : std::vector<char32_t>();
  const auto size = static_cast<std::int64_t>(value.is_string() ? points.size() : value.size());
  std::int64_t at = index.get<std::int64_t>();
  if (at < 0) at += size;
  if (at < 0 || at >= size) user_error("the index {} is beyond {} elements", index.dump(), size);
  if (value.is_array()) return value[static_cast<std::size_t>(at)];
  return from_code_points(points.begin() + at, points.begin() + at + 1);
}

// A null limit is the beginning or the end.
EvalDocument slice_of(const EvalDocument& value, const EvalDocument& from, const EvalDocument& to) {
  const bool text = value.is_string();
  if (!text && !value.is_array()) user_error("{} has no slices", kind_in_words(value));
  const std::vector<char32_t> points =
      text ? code_points_of(value.get_ref<const std::string&>()) : std::vector<char32_t>();
  const auto size = static_cast<std::int64_t>(text ? points.size() : value.size());
  const auto bound = [&](const EvalDocument& limit, std::int64_t otherwise) {
    if (limit.is_null()) return otherwise;
    if (!limit.is_number_integer()) user_error("a slice ends at {}", kind_in_words(limit));
    const std::int64_t at = limit.get<std::int64_t>();
    return at < 0 ? std::max<std::int64_t>(std::max(at, -size) + size, 0) : std::min(at, size);
  };
  const std::int64_t begin = bound(from, 0), end = std::max(begin, bound(to, size));
  if (text) return from_code_points(points.begin() + begin, points.begin() + end);
  EvalDocument list = EvalDocument::array();
  for (std::int64_t i = begin; i < end; ++i) list.push_back(value[static_cast<std::size_t>(i)]);
  return list;
}

using TemplateExpression = std::function<Value(const Value&)>;

class TemplateParser {
 public:
  TemplateParser(std::string_view text, std::size_t at, const std::string& source)
      : text_(text), at_(at), source_(source) {}

  // Parses up to the closing }} and returns the position after it.
  std::pair<TemplateExpression, std::size_t> run() {
    TemplateExpression expression = sum();
    skip_spaces();
    if (text_.substr(at_, 2) != "}}") unsupported();
    return {std::move(expression), at_ + 2};
  }

 private:
  [[noreturn]] void unsupported() {
    if (at_ >= text_.size()) user_error("{}: an expression does not end with }}}}", source_);
    std::size_t end = at_;
    while (end < text_.size() && is_name_character(text_[end])) ++end;
    if (end == at_) end += std::max<std::size_t>(1, code_point_at(text_, at_).bytes);
    user_error("{}: '{}' is not supported in an expression", source_, text_.substr(at_, end - at_));
  }
  [[noreturn]] void unsupported(std::string_view what, std::string_view name) {
    user_error("{}: the {} '{}' is not supported", source_, what, name);
  }

  static bool is_name_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  void skip_spaces() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) unsupported();
  }
  std::string name() {
    skip_spaces();
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name_character(text_[at_])) ++at_;
    if (begin == at_ || (text_[begin] >= '0' && text_[begin] <= '9')) {
      at_ = begin;
      unsupported();
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  TemplateExpression sum() {
    if (++depth_ > 50) user_error("{}: an expression is nested too deeply", source_);
    TemplateExpression left = postfix();
    while (take('+')) {
      TemplateExpression right = postfix();
      left = [left, right](const Value& document) {
        return added(left(document), right(document));
      };
    }
    --depth_;
    return left;
  }

  TemplateExpression postfix() {
    TemplateExpression value = primary();
    for (int length = 0;; ++length) {
      if (length > 50) user_error("{}: an expression is too long", source_);
      if (take('.'))
        value = member(std::move(value));
      else if (take('['))
        value = element(std::move(value));
      else if (take('|'))
        value = filter(std::move(value));
      else
        return value;
    }
  }

  TemplateExpression member(TemplateExpression value) {
    const std::string word = name();
    if (take('('))
      return apply(std::move(value), find_method(word), "method", word, list_until(')'));
    return [value, word](const Value& document) { return attribute_of(value(document), word); };
  }

  TemplateExpression filter(TemplateExpression value) {
    const std::string word = name();
    std::vector<TemplateExpression> arguments;
    if (take('(')) arguments = list_until(')');
    return apply(std::move(value), find_filter(word), "filter", word, std::move(arguments));
  }

  TemplateExpression apply(TemplateExpression value, const TemplateFunction* function,
                           std::string_view what, const std::string& word,
                           std::vector<TemplateExpression> arguments) {
    if (function == nullptr) unsupported(what, word);
    if (arguments.size() < function->least || arguments.size() > function->most)
      user_error("{}: {} has {} arguments", source_, word, arguments.size());
    return [value, function, arguments = std::move(arguments)](const Value& document) {
      std::vector<Value> values;
      for (const TemplateExpression& argument : arguments) values.push_back(argument(document));
      return function->apply(value(document), values);
    };
  }

  TemplateExpression element(TemplateExpression value) {
    const TemplateExpression none = [](const Value&) { return Value(); };
    skip_spaces();
    const bool from_start = take(':');
    const TemplateExpression first = from_start ? none : sum();
    if (!from_start && take(']'))
      return [value, first](const Value& document) {
        return item_at(value(document), first(document));
      };
    if (!from_start) expect(':');
    const bool to_end = take(']');
    const TemplateExpression last = to_end ? none : sum();
    if (!to_end) expect(']');
    return [value, first, last](const Value& document) {
      return slice_of(value(document), first(document), last(document));
    };
  }

  std::vector<TemplateExpression> list_until(char end) {
    std::vector<TemplateExpression> items;
    while (!take(end)) {
      items.push_back(sum());
      if (take(end)) break;
      expect(',');
    }
    return items;
  }

  TemplateExpression primary() {
    skip_spaces();
    if (at_ >= text_.size()) unsupported();
    const char c = text_[at_];
    if (c == '\'' || c == '"') return constant(quoted(c));
    if (c == '-' || (c >= '0' && c <= '9')) return constant(number());
    if (take('(')) {
      TemplateExpression inner = sum();
      expect(')');
      return inner;
    }
    if (take('[')) {
      const std::vector<TemplateExpression> items = list_until(']');
      return [items](const Value& document) {
        Value list = Value::array();
        for (const TemplateExpression& item : items) list.push_back(item(document));
        return list;
      };
    }
    return column(name());
  }

  TemplateExpression column(const std::string& word) {
    static constexpr std::string_view kOther[] = {"true", "false", "none",  "True", "False", "None",
                                                  "not",  "if",    "range", "and",  "or",    "in"};
    if (std::find(std::begin(kOther), std::end(kOther), word) != std::end(kOther))
      unsupported("word", word);
    if (take('(')) unsupported("function", word);
    return [word](const Value& document) {
      if (!document.is_object() || !document.contains(word))
        user_error("the document has no column '{}'", word);
      return Value(document[word]);
    };
  }

  static TemplateExpression constant(Value value) {
    return [value = std::move(value)](const Value&) { return value; };
  }

  std::string quoted(char quote) {
    std::string result;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] != '\\') {
        result += text_[at_];
        continue;
      }
      static constexpr std::string_view kEscapes = "n\nt\tr\r\\\\'\'\"\"";
      std::size_t i = 0;
      while (i < kEscapes.size() && (at_ + 1 >= text_.size() || kEscapes[i] != text_[at_ + 1]))
        i += 2;
      if (i >= kEscapes.size()) unsupported("escape", text_.substr(at_, 2));
      result += kEscapes[i + 1];
      ++at_;
    }
    if (at_ >= text_.size()) user_error("{}: a string has no end", source_);
    ++at_;
    return result;
  }

  Value number() {
    std::int64_t value = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) unsupported();
    at_ = static_cast<std::size_t>(end - text_.data());
    return value;
  }

  std::string_view text_;
  std::size_t at_;
  const std::string& source_;
  int depth_ = 0;
};

}  // namespace

std::string python_text(const EvalDocument& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "None";
  if (value.is_number()) return value.dump();
  user_error("{} cannot be written as text: join it, or select an element", kind_in_words(value));
}

TaskTemplate::TaskTemplate(std::string_view text, const std::string& source) : source_(source) {
  if (valid_utf8_prefix(text) != text.size()) user_error("{} is not UTF-8", source_);
  std::size_t kept = 0;
  while (true) {
    std::size_t begin = kept;
    while (begin < text.size() && !(text[begin] == '{' && begin + 1 < text.size() &&
                                    std::string_view("{%#").find(text[begin + 1]) != text.npos))
      ++begin;
    Part part{std::string(text.substr(kept, begin - kept)), {}};
    if (begin >= text.size()) {
      if (!part.text.empty() || parts_.empty()) parts_.push_back(std::move(part));
      return;
    }
    if (text[begin + 1] == '%') user_error("{}: statements ({{% %}}) are not supported", source_);
    if (text[begin + 1] == '#') user_error("{}: comments ({{# #}}) are not supported", source_);
    std::tie(part.expression, kept) = TemplateParser(text, begin + 2, source_).run();
    parts_.push_back(std::move(part));
  }
}

std::string TaskTemplate::render(const EvalDocument& document) const {
  std::string text;
  for (const Part& part : parts_) {
    text += part.text;
    if (!part.expression) continue;
    try {
      text += python_text(part.expression(document));
    } catch (const UserError& error) {
      user_error("{}: {}", source_, error.what());
    }
  }
  return text;
}

EvalDocument TaskTemplate::value(const EvalDocument& document) const {
  if (parts_.size() != 1 || !parts_[0].text.empty() || !parts_[0].expression)
    return render(document);
  try {
    return parts_[0].expression(document);
  } catch (const UserError& error) {
    user_error("{}: {}", source_, error.what());
  }
}

}  // namespace kintsugi
