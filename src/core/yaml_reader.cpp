#include "core/yaml_reader.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace kintsugi {

// ---- scalars

std::string Range::text() const {
  std::vector<std::string> parts;
  if (std::isfinite(low))
    parts.push_back(fmt::format("{} {}", low_open ? "above" : "at least", low));
  if (std::isfinite(high))
    parts.push_back(fmt::format("{} {}", high_open ? "below" : "at most", high));
  return fmt::format("{}", fmt::join(parts, " and "));
}

bool YamlScalar<bool>::parse(const std::string& text) { return parse_bool(text); }
double YamlScalar<double>::parse(const std::string& text) { return parse_real(text); }

namespace {

// Plain integers are parsed exactly; numbers with units or exponents are parsed as double.
template <class T>
std::optional<T> parse_exactly(const std::string& text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return {};
  return value;
}

}  // namespace

std::int64_t YamlScalar<std::int64_t>::parse(const std::string& text) {
  if (const auto exact = parse_exactly<std::int64_t>(text)) return *exact;
  return parse_count(text);
}

std::uint64_t YamlScalar<std::uint64_t>::parse(const std::string& text) {
  if (const auto exact = parse_exactly<std::uint64_t>(text)) return *exact;
  const std::int64_t value = parse_count(text);
  if (value < 0) user_error("'{}' is negative", text);
  return static_cast<std::uint64_t>(value);
}

// The shortest decimal number that parses to the same value.
std::string YamlScalar<double>::format(double value) { return fmt::format("{}", value); }

std::string YamlScalar<std::string>::parse(const std::string& text) {
  if (text.empty()) user_error("a string is expected, found an empty one");
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      user_error("the string holds a control character (code {}): remove it", static_cast<int>(c));
  return text;
}

std::string YamlScalar<std::string>::format(const std::string& value) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '/' || c == '.' || c == '-';
  };
  const bool null = value == "null" || value == "Null" || value == "NULL";
  if (!null && std::ranges::all_of(value, plain) && !value.starts_with('-') &&
      !value.starts_with('.'))
    return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::optional<std::string> YamlScalar<std::optional<std::string>>::parse(const std::string& text) {
  return YamlScalar<std::string>::parse(text);
}

std::string YamlScalar<std::optional<std::string>>::format(
    const std::optional<std::string>& value) {
  return value ? YamlScalar<std::string>::format(*value) : "null";
}

std::string joined(std::span<const std::string_view> words) {
  if (words.size() == 1) return std::string(words[0]);
  return fmt::format("{} or {}", fmt::join(words.first(words.size() - 1), ", "), words.back());
}

std::size_t parse_word(const std::string& text, std::span<const std::string_view> words) {
  const auto at = std::ranges::find(words, text);
  if (at == words.end()) user_error("'{}' is not {}", text, joined(words));
  return static_cast<std::size_t>(at - words.begin());
}

// ---- reading

YamlReader::YamlReader(const YamlDocument& document, const std::vector<std::string>& all_keys,
                       const std::vector<Synonym>& synonyms)
    : document_(&document),
      all_keys_(&all_keys),
      synonyms_(&synonyms),
      node_(std::make_shared<const YAML::Node>(document.root())) {}

namespace {

const std::vector<Synonym> kNoSynonyms;

}  // namespace

YamlReader::YamlReader(const YamlDocument& document, const std::vector<std::string>& all_keys)
    : YamlReader(document, all_keys, kNoSynonyms) {}

YamlReader::YamlReader(const YamlReader& parent, const YAML::Node& node, std::string prefix)
    : document_(parent.document_),
      all_keys_(parent.all_keys_),
      synonyms_(parent.synonyms_),
      node_(std::make_shared<const YAML::Node>(node)),
      prefix_(std::move(prefix)) {}

std::string YamlReader::where(const std::string& key) const {
  return document_->where(prefix_ + key, line_of_key(*node_, key));
}

void YamlReader::complain(const std::string& key, const std::string& problem) const {
  user_error("{}: {}{}: {}", where(key), prefix_, key, problem);
}

void YamlReader::check(const char* key, double value, const std::string& text, Range range) const {
  if (!range.holds(value))
    user_error("{}: {}{} is {}: it must be {}", where(key), prefix_, key, text, range.text());
}

bool YamlReader::take(const char* key) {
  known_.emplace_back(key);
  return (*node_)[key].IsDefined();
}

bool YamlReader::is_null(const char* key) {
  const YAML::Node value = (*node_)[key];
  return value.IsDefined() && value.IsNull() && take(key);
}

std::optional<std::string> YamlReader::scalar(const char* key, const std::string& expected) {
  if (!take(key)) return {};
  const YAML::Node value = (*node_)[key];
  if (!value.IsScalar())
    complain(key, fmt::format("{} is expected, found {}", expected, in_words(value)));
  return value.Scalar();
}

std::optional<std::vector<std::string>> YamlReader::scalars(const char* key, std::size_t count,
                                                            const std::string& expected) {
  if (!take(key)) return {};
  const YAML::Node value = (*node_)[key];
  if (!value.IsSequence() || value.size() != count)
    complain(key, fmt::format("a list of {} is expected, found {}", count,
                              value.IsSequence() ? fmt::format("one of {}", value.size())
                                                 : in_words(value)));
  std::vector<std::string> texts;
  for (const auto& item : value) {
    if (!item.IsScalar())
      complain(key, fmt::format("{} is expected in the list, found {}", expected, in_words(item)));
    texts.push_back(item.Scalar());
  }
  return texts;
}

void YamlReader::operator()(const char* key, std::vector<std::string>& values, StringKind kind) {
  if (!take(key)) return;
  const YAML::Node list = (*node_)[key];
  if (!list.IsSequence())
    complain(key, fmt::format("a list of strings is expected, found {}", in_words(list)));
  values.clear();
  for (const auto& item : list) {
    if (!item.IsScalar())
      complain(key, fmt::format("a string is expected in the list, found {}", in_words(item)));
    std::string checked = item.Scalar();
    if (kind == StringKind::Text)
      std::ranges::replace_if(
          checked, [](char c) { return c == '\n' || c == '\t'; }, ' ');
    parse<std::string>(key, checked, {});
    values.push_back(item.Scalar());
  }
}

void YamlReader::operator()(const char* key, NumbersOrWord& value, Range range) {
  if (!take(key)) return;
  const YAML::Node node = (*node_)[key];
  value = {};
  if (node.IsScalar()) {
    value.word = parse<std::string>(key, node.Scalar(), {});
    return;
  }
  if (!node.IsSequence())
    complain(key, fmt::format("a list of numbers is expected, found {}", in_words(node)));
  for (const auto& item : node) {
    if (!item.IsScalar())
      complain(key, fmt::format("a number is expected in the list, found {}", in_words(item)));
    value.numbers.push_back(parse<double>(key, item.Scalar(), range));
  }
}

void YamlReader::operator()(const char* key,
                            std::vector<std::pair<std::string, std::string>>& values) {
  read_map(key, values, {});
}

void YamlReader::operator()(const char* key, std::vector<std::pair<std::string, double>>& values,
                            Range range) {
  read_map(key, values, range);
}

template <class T>
void YamlReader::read_map(const char* key, std::vector<std::pair<std::string, T>>& values,
                          Range range) {
  const std::optional<YamlReader> inner = section(key);
  if (!inner) return;
  values.clear();
  for (const auto& item : inner->node()) {
    const std::string name = item.first.Scalar();
    if (!item.second.IsScalar())
      inner->complain(name, fmt::format("{} is expected, found {}", YamlScalar<T>::expected(),
                                        in_words(item.second)));
    values.emplace_back(name, inner->parse<T>(name.c_str(), item.second.Scalar(), range));
  }
}

std::optional<YamlReader> YamlReader::section(const char* key) {
  if (!take(key)) return {};
  const YAML::Node value = (*node_)[key];
  if (value.IsNull()) return {};  // an empty section: all its keys are commented out
  if (!value.IsMap())
    complain(key, fmt::format("a map of keys is expected, found {}", in_words(value)));
  return YamlReader(*this, value, prefix_ + key + ".");
}

std::optional<std::vector<YamlReader>> YamlReader::sections(const char* key) {
  if (!take(key)) return {};
  const YAML::Node value = (*node_)[key];
  if (!value.IsSequence())
    complain(key, fmt::format("a list of maps is expected, found {}", in_words(value)));
  std::vector<YamlReader> items;
  for (const auto& item : value) {
    const std::string name = fmt::format("{}[{}]", key, items.size());
    if (!item.IsMap())
      complain(key, fmt::format("item {} must be a map of keys, found {}", items.size(),
                                in_words(item)));
    items.push_back(YamlReader(*this, item, prefix_ + name + "."));
  }
  return items;
}

void YamlReader::refuse_other_keys() const {
  for (const auto& item : *node_) {
    const std::string key = item.first.Scalar();
    if (std::ranges::find(known_, key) != known_.end()) continue;
    const std::string where = document_->where(prefix_ + key, item.first.Mark().line);
    const std::string near = nearest_word(key, known_);
    std::string hint = near.empty() ? "" : prefix_ + near;
    // The right key in the wrong section; of several the one with the shortest name.
    std::string elsewhere;
    for (const std::string& other : *all_keys_)
      if (other.ends_with("." + key) && (elsewhere.empty() || other.size() < elsewhere.size()))
        elsewhere = other;
    if (!elsewhere.empty()) hint = elsewhere;
    if (const std::string ours = synonym_of(key, *synonyms_); !ours.empty()) hint = ours;
    if (!hint.empty())
      user_error("{}: unknown key '{}{}'; did you mean '{}'?", where, prefix_, key, hint);
    user_error("{}: unknown key '{}{}'; the keys are {}", where, prefix_, key,
               fmt::join(known_, ", "));
  }
}

// ---- writing

void YamlWriter::line(const char* key, const std::string& value) {
  text_ += fmt::format("{:{}}{}:{}{}\n", "", indent_, key, value.empty() ? "" : " ", value);
}

void YamlWriter::operator()(const char* key, NumbersOrWord& value, Range) {
  std::string list;
  for (const double number : value.numbers)
    list += (list.empty() ? "" : ", ") + YamlScalar<double>::format(number);
  line(key, value.word.empty() ? "[" + list + "]" : YamlScalar<std::string>::format(value.word));
}

void YamlWriter::operator()(const char* key, std::vector<std::string>& values, StringKind) {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ", ") + yaml_quoted(value);
  line(key, "[" + list + "]");
}

void YamlWriter::operator()(const char* key,
                            std::vector<std::pair<std::string, std::string>>& values) {
  line(key, values.empty() ? "{}" : "");
  YamlWriter inner(indent_ + 2);
  for (const auto& [name, value] : values) inner.line(name.c_str(), yaml_quoted(value));
  text_ += inner.text();
}

void YamlWriter::operator()(const char* key, std::vector<std::pair<std::string, double>>& values,
                            Range) {
  line(key, values.empty() ? "{}" : "");
  YamlWriter inner(indent_ + 2);
  for (auto& [name, value] : values) inner(name.c_str(), value);
  text_ += inner.text();
}

void YamlWriter::block(const char* key, const std::string& lines, const std::string& remark) {
  std::string comment = remark.empty() ? "" : "# " + remark;
  std::ranges::replace_if(
      comment, [](unsigned char c) { return c < 0x20; }, '?');
  line(key, comment);
  std::string_view rest = lines;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    text_ += fmt::format("{:{}}{}\n", "", indent_ + 2, rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
}

}  // namespace kintsugi
