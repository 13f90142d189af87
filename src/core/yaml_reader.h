#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/units.h"
#include "core/yaml_document.h"

namespace kintsugi {

// Strict parsing of configuration files. Each struct has one description,
//
//   template <class V>
//   void describe(V& v, Batch& b) {
//     v("global", b.global, at_least(1));
//   }
//
// and the visitors YamlReader, YamlWriter and YamlKeys use it to read and write the struct and to
// list its keys.

// ---- scalars: expected value in words, parsing and formatting

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;

  bool holds(double value) const {
    return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
  }
  std::string text() const;  // "at least 0 and below 1"
};
constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range above(double low) { return {.low = low, .low_open = true}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range kFraction = {.low = 0, .high = 1, .high_open = true};

// parse() throws a UserError about the text; the reader adds the file, the line and the key.
template <class T>
struct YamlScalar;

template <>
struct YamlScalar<bool> {
  static std::string expected() { return "true or false"; }
  static bool parse(const std::string& text);
  static std::string format(bool value) { return value ? "true" : "false"; }
};
template <>
struct YamlScalar<double> {
  static std::string expected() { return "a number"; }
  static double parse(const std::string& text);
  static std::string format(double value);
};
template <>
struct YamlScalar<std::int64_t> {
  static std::string expected() { return "a whole number"; }
  static std::int64_t parse(const std::string& text);
  static std::string format(std::int64_t value) { return std::to_string(value); }
};
template <>
struct YamlScalar<std::uint64_t> {
  static std::string expected() { return "a whole number"; }
  static std::uint64_t parse(const std::string& text);
  static std::string format(std::uint64_t value) { return std::to_string(value); }
};
template <>
struct YamlScalar<std::string> {
  static std::string expected() { return "a string"; }
  static std::string parse(const std::string& text);
  static std::string format(const std::string& value);
};
// A string, or null.
template <>
struct YamlScalar<std::optional<std::string>> {
  static std::string expected() { return "a string or null"; }
  static std::optional<std::string> parse(const std::string& text);
  static std::string format(const std::optional<std::string>& value);
};
// A number, or "auto".
template <class T>
requires std::is_arithmetic_v<T>
struct YamlScalar<std::optional<T>> {
  static std::string expected() { return "auto or " + YamlScalar<T>::expected(); }
  static std::optional<T> parse(const std::string& text) {
    if (text == "auto") return {};
    return YamlScalar<T>::parse(text);
  }
  static std::string format(const std::optional<T>& value) {
    return value ? YamlScalar<T>::format(*value) : "auto";
  }
};

std::size_t parse_word(const std::string& text, std::span<const std::string_view> words);
std::string joined(std::span<const std::string_view> words);  // "a, b or c"

// Specialize it with EnumWords: those of an enumeration in the order of its values.
template <std::size_t N>
using EnumWords = std::array<std::string_view, N>;
template <class E>
constexpr std::nullptr_t kEnumWords = nullptr;

template <class E>
requires std::is_enum_v<E>
struct YamlScalar<E> {
  static std::string expected() { return joined(kEnumWords<E>); }
  static E parse(const std::string& text) {
    return static_cast<E>(parse_word(text, kEnumWords<E>));
  }
  static std::string format(E value) {
    return std::string(kEnumWords<E>.at(static_cast<std::size_t>(value)));
  }
};

// A list of numbers, or one word instead of it.
struct NumbersOrWord {
  std::vector<double> numbers = {};
  std::string word = {};
  bool given() const { return !numbers.empty() || !word.empty(); }
  bool operator==(const NumbersOrWord&) const = default;
};

// What a list of strings holds. A text may have line breaks and tabs, a name may not.
enum class StringKind : std::uint8_t { Name, Text };

struct AnyVisitor {};
template <class T>
concept Described = requires(AnyVisitor& visitor, T& value) {
  describe(visitor, value);
};

// ---- visitors

// Reads one map. Fields whose keys are missing in the map keep their values.
class YamlReader {
 public:
  // `all_keys` (every dotted key of the document) and `synonyms` (names in other programs) are used
  // for hints about unknown keys. The arguments must outlive the reader.
  YamlReader(const YamlDocument& document, const std::vector<std::string>& all_keys,
             const std::vector<Synonym>& synonyms);
  YamlReader(const YamlDocument& document, const std::vector<std::string>& all_keys);

  template <class T>
  void operator()(const char* key, T& value, Range range = {}) {
    if constexpr (Described<T>) {
      if (std::optional<YamlReader> inner = section(key)) inner->read(value);
    } else {
      if constexpr (std::is_same_v<T, std::optional<std::string>>)
        if (is_null(key)) return value.reset();
      if (const auto text = scalar(key, YamlScalar<T>::expected()))
        value = parse<T>(key, *text, range);
    }
  }

  // A section that may be absent; an empty one is there.
  template <Described T>
  void operator()(const char* key, std::optional<T>& value) {
    if (!take(key)) return;
    value.emplace();
    if (std::optional<YamlReader> inner = section(key)) inner->read(*value);
  }

  template <Described T>
  void operator()(const char* key, std::vector<T>& values) {
    const auto items = sections(key);
    if (!items) return;
    values.clear();
    for (YamlReader item : *items) item.read(values.emplace_back());
  }

  template <class T, std::size_t N>
  void operator()(const char* key, std::array<T, N>& values, Range range = {}) {
    const auto texts = scalars(key, N, YamlScalar<T>::expected());
    if (!texts) return;
    for (std::size_t i = 0; i < N; ++i) values[i] = parse<T>(key, (*texts)[i], range);
  }

  void operator()(const char* key, NumbersOrWord& value, Range range = {});

  // A list of strings, and maps from names to strings or numbers in the order of the file.
  void operator()(const char* key, std::vector<std::string>& values,
                  StringKind kind = StringKind::Name);
  void operator()(const char* key, std::vector<std::pair<std::string, std::string>>& values);
  void operator()(const char* key, std::vector<std::pair<std::string, double>>& values,
                  Range range = {});

  // Reads a described struct; any other key is a UserError.
  template <Described T>
  void read(T& value) {
    describe(*this, value);
    refuse_other_keys();
  }

 protected:
  const YamlDocument& document() const { return *document_; }
  const YAML::Node& node() const { return *node_; }      // the map
  const std::string& prefix() const { return prefix_; }  // of its keys
  bool take(const char* key);  // marks the key as known; returns whether the map has it
  void refuse_other_keys() const;
  std::optional<std::vector<YamlReader>> sections(const char* key);
  template <class T>
  void read_map(const char* key, std::vector<std::pair<std::string, T>>& values, Range range);
  std::string where(const std::string& key) const;
  [[noreturn]] void complain(const std::string& key, const std::string& problem) const;

 private:
  YamlReader(const YamlReader& parent, const YAML::Node& node, std::string prefix);

  bool is_null(const char* key);
  std::optional<std::string> scalar(const char* key, const std::string& expected);
  std::optional<std::vector<std::string>> scalars(const char* key, std::size_t count,
                                                  const std::string& expected);
  std::optional<YamlReader> section(const char* key);
  void check(const char* key, double value, const std::string& text, Range range) const;

  template <class T>
  T parse(const char* key, const std::string& text, Range range) const {
    T value{};
    try {
      value = YamlScalar<T>::parse(text);
    } catch (const UserError& error) {
      complain(key, error.what());
    }
    if constexpr (std::is_arithmetic_v<T>) check(key, static_cast<double>(value), text, range);
    if constexpr (std::is_same_v<T, std::optional<std::int64_t>> ||
                  std::is_same_v<T, std::optional<double>>)
      if (value) check(key, static_cast<double>(*value), text, range);
    return value;
  }

  const YamlDocument* document_;
  const std::vector<std::string>* all_keys_;
  const std::vector<Synonym>* synonyms_;
  std::shared_ptr<const YAML::Node> node_;
  std::string prefix_;  // "", "optimizer." or "data.train[0]."
  std::vector<std::string> known_;
};

class YamlWriter {
 public:
  explicit YamlWriter(int indent = 0) : indent_(indent) {}
  const std::string& text() const { return text_; }

  template <class T>
  void operator()(const char* key, T& value, Range = {}) {
    if constexpr (Described<T>) {
      YamlWriter inner(indent_ + 2);
      describe(inner, value);
      line(key, "");
      text_ += inner.text();
    } else {
      line(key, YamlScalar<T>::format(value));
    }
  }

  template <Described T>
  void operator()(const char* key, std::optional<T>& value) {
    if (value) (*this)(key, *value);
  }

  template <Described T>
  void operator()(const char* key, std::vector<T>& values) {
    line(key, values.empty() ? "[]" : "");
    for (T& value : values) {
      YamlWriter item(indent_ + 4);
      describe(item, value);
      std::string text = item.text();
      text[static_cast<std::size_t>(indent_) + 2] = '-';
      text_ += text;
    }
  }

  template <class T, std::size_t N>
  void operator()(const char* key, std::array<T, N>& values, Range = {}) {
    std::string list;
    for (const T& value : values) list += (list.empty() ? "" : ", ") + YamlScalar<T>::format(value);
    line(key, "[" + list + "]");
  }

  void operator()(const char* key, NumbersOrWord& value, Range = {});
  void operator()(const char* key, std::vector<std::string>& values, StringKind = StringKind::Name);
  void operator()(const char* key, std::vector<std::pair<std::string, std::string>>& values);
  void operator()(const char* key, std::vector<std::pair<std::string, double>>& values, Range = {});

 protected:
  void append(const std::string& text) { text_ += text; }
  void line(const char* key, const std::string& value);
  // Writes YAML `lines` indented below `key`; `remark` follows the key as a comment.
  void block(const char* key, const std::string& lines, const std::string& remark);

 private:
  int indent_;
  std::string text_;
};

// Collects the dotted keys of a description, without those of list items.
class YamlKeys {
 public:
  const std::vector<std::string>& keys() const { return keys_; }

  template <class T, class... Rest>
  void operator()(const char* key, T& value, Rest...) {
    if constexpr (Described<T>) {
      YamlKeys inner;
      describe(inner, value);
      for (const std::string& name : inner.keys()) keys_.push_back(std::string(key) + "." + name);
    } else {
      keys_.emplace_back(key);
    }
  }

 protected:
  void add(std::string key) { keys_.push_back(std::move(key)); }

 private:
  std::vector<std::string> keys_;
};

}  // namespace kintsugi
