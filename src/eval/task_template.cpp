#include "eval/task_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "eval/template_values.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

using Value = EvalDocument;
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
