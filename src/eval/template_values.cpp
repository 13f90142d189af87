#include "eval/template_values.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

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

}  // namespace

const TemplateFunction* find_method(std::string_view name) {
  return find_function(kTemplateMethods, name);
}
const TemplateFunction* find_filter(std::string_view name) {
  return find_function(kTemplateFilters, name);
}

std::string python_text(const EvalDocument& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "None";
  if (value.is_number()) return value.dump();
  user_error("{} cannot be written as text: join it, or select an element", kind_in_words(value));
}

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

}  // namespace kintsugi
