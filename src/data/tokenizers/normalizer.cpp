#include "data/tokenizers/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "data/tokenizers/unicode_regex.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

// Text below U+0300 is already NFC: there are no combining marks to compose with.
bool is_surely_nfc(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

// Sorts combining marks by class. utf8proc's own sorting takes quadratic time for many marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto mark_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    while (end < text.size() && mark_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(begin),
                     text.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
    begin = std::max(end, begin + 1);
  }
}

void decompose(std::string_view text, utf8proc_option_t options,
               std::vector<utf8proc_int32_t>& result) {
  for (std::size_t at = 0, length; at < text.size(); at += length) {
    const auto c = static_cast<utf8proc_int32_t>(utf8_decode(text, at, length));
    utf8proc_int32_t parts[32];  // U+FDFA becomes eighteen characters
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(c, parts, 32, options, &boundary);
    if (count > 0 && count <= 32)
      result.insert(result.end(), parts, parts + count);
    else
      result.push_back(c);
  }
}

// The maximum growth factor: far more than any tokenizer needs (in NFKC one character becomes at
// most eighteen), but small enough to stop a chain of replacements that each double the text.
constexpr std::size_t kMostGrowth = 256, kFreeBytes = 64 * 1024;

// Caught where the name of the file is known.
struct GrownTooMuch {};

}  // namespace

std::string unicode_normalize(std::string_view text, bool compose, bool canonical) {
  if (is_ascii(text) || (compose && canonical && is_surely_nfc(text))) return std::string(text);
  const int options =
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (canonical ? 0 : static_cast<int>(UTF8PROC_COMPAT));
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  decompose(text, static_cast<utf8proc_option_t>(options), characters);
  order_marks(characters);
  if (compose) {
    const utf8proc_ssize_t count = utf8proc_normalize_utf32(
        characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    KINTSUGI_CHECK(count >= 0, "utf8proc: {}", utf8proc_errmsg(count));
    characters.resize(static_cast<std::size_t>(count));
  }
  std::string result;
  result.reserve(text.size());
  for (const utf8proc_int32_t c : characters) utf8_append(result, static_cast<char32_t>(c));
  return result;
}

struct Normalizer::Step {
  enum class Kind { Unicode, Prepend, Append, Replace } kind = Kind::Unicode;
  bool compose = false, canonical = false;
  std::optional<UnicodeRegex> regex;
  std::string literal, content;

  void apply(std::string_view text, std::string& result, std::size_t most) {
    result.clear();
    switch (kind) {
      case Kind::Prepend:
        result.append(content).append(text);
        return;
      case Kind::Append:
        result.append(text).append(content);
        return;
      case Kind::Unicode:
      case Kind::Replace:
        break;
    }
    while (!text.empty()) {
      const std::size_t valid = valid_utf8_prefix(text);
      if (kind == Kind::Unicode)
        result += unicode_normalize(text.substr(0, valid), compose, canonical);
      else
        replace(text.substr(0, valid), result, most);
      if (result.size() > most) throw GrownTooMuch();
      text.remove_prefix(valid);
      if (!text.empty()) result += text[0], text.remove_prefix(1);
    }
  }

  void replace(std::string_view text, std::string& result, std::size_t most) {
    std::size_t done = 0;
    const auto put = [&](std::string_view before) {
      result.append(before).append(content);
      if (result.size() > most) throw GrownTooMuch();
    };
    if (regex) {
      UnicodeRegex::Match match;
      std::size_t last = std::string_view::npos;
      while (regex->find(text, done, match, last)) {
        put(text.substr(done, match.begin - done));
        last = done = match.end;
      }
    } else if (!literal.empty()) {
      for (std::size_t at; (at = text.find(literal, done)) != std::string_view::npos;
           done = at + literal.size())
        put(text.substr(done, at - done));
    }
    result += text.substr(done);
  }
};

void Normalizer::add_steps(const Json& json) {
  using Kind = Step::Kind;
  if (json.is_null()) return;
  const std::string type = json.at("type").get<std::string>();
  if (type == "Sequence") {
    for (const Json& part : json.at("normalizers")) add_steps(part);
    return;
  }
  Step step;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.compose = type.back() == 'C';
    step.canonical = type[2] != 'K';
  } else if (type == "Prepend") {
    step.kind = Kind::Prepend;
    step.content = json.at("prepend").get<std::string>();
  } else if (type == "Append") {
    step.kind = Kind::Append;
    step.content = json.at("append").get<std::string>();
  } else if (type == "Replace") {
    step.kind = Kind::Replace;
    const Json& pattern = json.at("pattern");
    if (pattern.contains("Regex"))
      step.regex.emplace(pattern.at("Regex").get<std::string>());
    else
      step.literal = pattern.at("String").get<std::string>();
    step.content = json.at("content").get<std::string>();
  } else {
    user_error(
        "normalizer: the type {} is not supported (known: NFC, NFD, NFKC, NFKD, Prepend, Append, "
        "Replace, Sequence)",
        type);
  }
  steps_.push_back(std::move(step));
}

Normalizer::Normalizer() = default;
Normalizer::~Normalizer() = default;
Normalizer::Normalizer(const Normalizer&) = default;
Normalizer& Normalizer::operator=(const Normalizer&) = default;
Normalizer::Normalizer(Normalizer&&) noexcept = default;
Normalizer& Normalizer::operator=(Normalizer&&) noexcept = default;

Normalizer Normalizer::of_json(std::string_view json) {
  Normalizer result;
  try {
    result.add_steps(Json::parse(json));
  } catch (const Json::exception& error) {
    user_error("normalizer: {}", error.what());
  }
  return result;
}

std::string_view Normalizer::apply(std::string_view text) {
  if (text.empty()) return text;
  const std::size_t bytes = text.size();
  const std::size_t most = bytes * kMostGrowth + kFreeBytes;
  std::size_t buffer = 0;
  for (Step& step : steps_) {
    const bool unchanged =
        step.kind == Step::Kind::Unicode &&
        (is_ascii(text) || (step.compose && step.canonical && is_surely_nfc(text)));
    if (unchanged) continue;
    try {
      step.apply(text, buffers_[buffer], most);
    } catch (const GrownTooMuch&) {
      user_error(
          "{}the normalizer makes more than {} bytes of a text of {} bytes: its steps expand each "
          "other's output; correct them",
          source_.empty() ? "" : source_ + ": ", most, bytes);
    }
    text = buffers_[buffer];
    buffer = 1 - buffer;
  }
  return text;
}

}  // namespace kintsugi
