#include "data/tokenizers/pre_tokenizer.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "data/tokenizers/tokenizer_formats.h"
#include "data/tokenizers/unicode.h"
#include "data/tokenizers/unicode_regex.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom = R"( ?[^(\s|[.,!?…。，、।۔،])]+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Family {
  std::string_view name, pattern;
};
constexpr Family kFamilies[] = {{"gpt2", kGpt2},     {"neox", kGpt2},    {"olmo", kGpt2},
                                {"llama3", kLlama3}, {"olmo2", kLlama3}, {"cl100k", kLlama3},
                                {"qwen", kQwen},     {"bloom", kBloom},  {"poro", kBloom},
                                {"o200k", kO200k}};

Json split_json(std::string_view pattern) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", std::string(pattern)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level_json(false)})}};
}

constexpr std::uint8_t kLetter = UnicodeClasses::Letter, kNumber = UnicodeClasses::Number,
                       kSpace = UnicodeClasses::Space, kOther = 0;

bool newline(char c) { return c == '\r' || c == '\n'; }

// The length of a contraction ('s 't 're 've 'm 'll 'd) whose apostrophe is at `begin`; 0 if none.
std::size_t contraction(std::string_view text, std::size_t begin, bool any_case) {
  const auto lower = [&](std::size_t i) -> char {
    if (begin + i >= text.size()) return '\0';
    const char c = text[begin + i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(1), second = lower(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  // Ignoring case, the long s is an s.
  return any_case && text.substr(begin + 1).starts_with("\u017F") ? 3 : 0;
}

// Hand-written matchers for the regular expressions of GPT-2, Llama 3 and Qwen: they take a quarter
// of the time of a regular expression, which is half of the encoding time. The expressions match
// every character of a text, so each pre-token starts where the previous one ends.
class PreTokenScanner {
 public:
  enum class Kind : std::uint8_t { Gpt2, Llama3 };
  // Llama 3 takes three digits at a time, Qwen one.
  explicit PreTokenScanner(Kind kind, int digits = 3)
      : kind_(kind), digits_(digits), classes_(&UnicodeClasses::get()) {
    for (std::size_t c = 0; c < ascii_.size(); ++c)
      ascii_[c] = classes_->of(static_cast<char32_t>(c)) & (kLetter | kNumber | kSpace);
  }

  // The end of the pre-token that starts at `begin` of well-formed text; begin < text.size().
  std::size_t pre_token_end(std::string_view text, std::size_t begin) const {
    return kind_ == Kind::Gpt2 ? gpt2(text, begin) : llama3(text, begin);
  }

 private:
  struct Character {
    std::uint8_t kind;   // Letter, Number, Space, or 0 (other, or the end of the text)
    std::uint8_t bytes;  // 0 at the end
  };

  Character at(std::string_view text, std::size_t position) const {
    if (position >= text.size()) return {kOther, 0};
    const auto byte = static_cast<unsigned char>(text[position]);
    if (byte < 0x80) return {ascii_[byte], 1};
    std::size_t length;
    const char32_t c = utf8_decode(text, position, length);
    return {static_cast<std::uint8_t>(classes_->of(c) & (kLetter | kNumber | kSpace)),
            static_cast<std::uint8_t>(length)};
  }

  std::size_t skip(std::string_view text, std::size_t position, std::uint8_t kind) const {
    for (;;) {
      const Character c = at(text, position);
      if (c.bytes == 0 || c.kind != kind) return position;
      position += c.bytes;
    }
  }

  // \s+(?!\S)|\s+: the last white-space character before other text belongs to that text.
  std::size_t white_space(std::string_view text, std::size_t begin) const {
    std::size_t last = begin, end = begin;
    for (Character c = at(text, begin); c.kind == kSpace; c = at(text, end)) {
      last = end;
      end += c.bytes;
    }
    return end == text.size() || last == begin ? end : last;
  }

  std::size_t gpt2(std::string_view text, std::size_t begin) const {
    if (text[begin] == '\'')
      if (const std::size_t length = contraction(text, begin, false)) return begin + length;
    // " ?" before letters, numbers or other characters
    const std::size_t position = begin + (text[begin] == ' ' ? 1 : 0);
    const Character c = at(text, position);
    if (c.bytes == 0 || c.kind == kSpace) return white_space(text, begin);
    return skip(text, position + c.bytes, c.kind);
  }

  std::size_t llama3(std::string_view text, std::size_t begin) const {
    if (text[begin] == '\'')
      if (const std::size_t length = contraction(text, begin, true)) return begin + length;
    const Character c = at(text, begin);
    std::size_t end = begin + c.bytes;
    if (c.kind == kLetter) return skip(text, end, kLetter);
    if (c.kind == kNumber) {
      for (int i = 1; i < digits_ && at(text, end).kind == kNumber; ++i) end += at(text, end).bytes;
      return end;
    }
    // Any single character except a line break is joined with the letters after it.
    const Character next = at(text, end);
    if (next.kind == kLetter && !newline(text[begin])) return skip(text, end + next.bytes, kLetter);
    if (c.kind == kOther || (text[begin] == ' ' && next.bytes > 0 && next.kind == kOther)) {
      end = skip(text, end, kOther);
      while (end < text.size() && newline(text[end])) ++end;
      return end;
    }
    // \s*[\r\n]+: up to the last line break of the white space
    const std::size_t space_end = skip(text, begin, kSpace);
    for (std::size_t i = space_end; i > begin; --i)
      if (newline(text[i - 1])) return i;
    return white_space(text, begin);
  }

  Kind kind_;
  int digits_;
  const UnicodeClasses* classes_;
  std::array<std::uint8_t, 128> ascii_;
};

// How Split treats the matches and the text between them.
enum class Behaviour { Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous };

struct Span {
  std::size_t begin, end;
  bool match;
};

// Joins adjacent spans according to the behaviour.
void merge_spans(std::vector<Span>& spans, Behaviour behaviour) {
  std::vector<Span> merged;
  if (behaviour == Behaviour::MergedWithNext) {
    bool previous = false;
    for (std::size_t i = spans.size(); i-- > 0;) {
      if (spans[i].match && !previous && !merged.empty())
        merged.back().begin = spans[i].begin;
      else
        merged.push_back(spans[i]);
      previous = spans[i].match;
    }
    spans.assign(merged.rbegin(), merged.rend());
    return;
  }
  bool previous = false;
  for (const Span& span : spans) {
    const bool join =
        behaviour == Behaviour::Contiguous ? span.match == previous : span.match && !previous;
    if (join && !merged.empty())
      merged.back().end = span.end;
    else
      merged.push_back(span);
    previous = span.match;
  }
  spans = std::move(merged);
}

}  // namespace

// One step of the pre-tokenizer: splits a text, or prepends to it.
struct PreTokenizer::Step {
  enum class Kind { Split, PrefixSpace, Metaspace } kind = Kind::Split;

  // Split: matches of a regular expression or of a literal text
  std::optional<PreTokenScanner> scanner;  // replaces a known expression
  std::optional<UnicodeRegex> regex;
  std::string literal;
  Behaviour behaviour = Behaviour::Isolated;
  bool invert = false;

  // Metaspace: `literal` replaces a space; whether one is prepended to the text
  enum class Prepend { Never, First, Always } prepend = Prepend::Never;

  std::string buffer;  // the modified text
  std::vector<Span> spans;

  void set_regex(const std::string& pattern) {
    if (pattern == kGpt2)
      scanner.emplace(PreTokenScanner::Kind::Gpt2);
    else if (pattern == kLlama3 || pattern == kQwen)
      scanner.emplace(PreTokenScanner::Kind::Llama3, pattern == kQwen ? 1 : 3);
    else
      regex.emplace(pattern);
  }

  template <class Visit>  // visit(begin, end, match) covers the whole text in order
  void visit_spans(std::string_view text, Visit&& visit) {
    std::size_t done = 0;
    const auto found = [&](std::size_t begin, std::size_t end) {
      if (begin > done) visit(done, begin, invert);
      visit(begin, end, !invert);
      done = end;
    };
    if (scanner) {
      while (done < text.size()) found(done, scanner->pre_token_end(text, done));
    } else if (regex) {
      UnicodeRegex::Match match;
      std::size_t last = std::string_view::npos;  // an empty match there does not count
      while (regex->find(text, done, match, last)) {
        found(match.begin, match.end);
        last = match.end;
      }
    } else if (!literal.empty()) {
      for (std::size_t at; (at = text.find(literal, done)) != std::string_view::npos;)
        found(at, at + literal.size());
    }
    if (done < text.size()) visit(done, text.size(), invert);
  }

  template <class Emit>
  void split(std::string_view text, Emit&& emit) {
    const auto emit_span = [&](std::size_t begin, std::size_t end) {
      if (begin < end) emit(text.substr(begin, end - begin));
    };
    if (behaviour == Behaviour::Isolated || behaviour == Behaviour::Removed) {
      const bool removed = behaviour == Behaviour::Removed;
      visit_spans(text, [&](std::size_t begin, std::size_t end, bool match) {
        if (!removed || !match) emit_span(begin, end);
      });
      return;
    }
    spans.clear();
    visit_spans(text, [&](std::size_t begin, std::size_t end, bool match) {
      spans.push_back({begin, end, match});
    });
    merge_spans(spans, behaviour);
    for (const Span& span : spans) emit_span(span.begin, span.end);
  }

  // Metaspace: replaces spaces, and prepends a replacement if required.
  void replace_spaces(std::string_view text, bool at_start) {
    buffer.clear();
    const bool before = prepend == Prepend::Always || (prepend == Prepend::First && at_start);
    if (before && !text.starts_with(literal) && !text.starts_with(' ')) buffer = literal;
    for (const char c : text)
      if (c == ' ')
        buffer += literal;
      else
        buffer += c;
  }
};

// Parses the JSON into steps.
class PreTokenizerReader {
 public:
  static PreTokenizer read(const Json& json) {
    PreTokenizer result;
    result.definition_.json = json.dump();
    PreTokenizerReader(result).add(json);
    return result;
  }

 private:
  using Step = PreTokenizer::Step;
  explicit PreTokenizerReader(PreTokenizer& result) : result_(result) {}

  void add(const Json& json) {
    if (json.is_null()) return;
    const std::string type = json.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const Json& part : json.at("pretokenizers")) add(part);
      return;
    }
    if (result_.definition_.byte_level)
      user_error("pre_tokenizer: {} after ByteLevel is not supported", type);
    if (type == "ByteLevel")
      add_byte_level(json);
    else if (type == "Split")
      add_split(json);
    else if (type == "Digits")
      add_regex("\\p{N}", json.value("individual_digits", false) ? Behaviour::Isolated
                                                                 : Behaviour::Contiguous);
    else if (type == "Punctuation")
      add_regex("[!-/:-@\\[-`{-~\\p{P}]", behaviour(json.value("behavior", "Isolated")));
    else if (type == "WhitespaceSplit")
      add_regex("\\s", Behaviour::Removed);
    else if (type == "Whitespace")
      add_regex("\\w+|[^\\w\\s]+", Behaviour::Removed).invert = true;
    else if (type == "Metaspace")
      add_metaspace(json);
    else
      user_error(
          "pre_tokenizer: the type {} is not supported (known: ByteLevel, Split, Sequence, Digits, "
          "Metaspace, Punctuation, Whitespace, WhitespaceSplit)",
          type);
  }

  Step& add_regex(const std::string& pattern, Behaviour behaviour) {
    Step& step = result_.steps_.emplace_back();
    step.set_regex(pattern);
    step.behaviour = behaviour;
    return step;
  }

  void add_byte_level(const Json& json) {
    if (json.value("add_prefix_space", true))
      result_.steps_.emplace_back().kind = Step::Kind::PrefixSpace;
    if (json.value("use_regex", true)) add_regex(std::string(kGpt2), Behaviour::Isolated);
    result_.definition_.byte_level = true;
  }

  void add_split(const Json& json) {
    const Json& pattern = json.at("pattern");
    Step& step = result_.steps_.emplace_back();
    if (pattern.contains("Regex"))
      step.set_regex(pattern.at("Regex").get<std::string>());
    else
      step.literal = pattern.at("String").get<std::string>();
    step.behaviour = behaviour(json.at("behavior").get<std::string>());
    step.invert = json.value("invert", false);
  }

  void add_metaspace(const Json& json) {
    using Prepend = Step::Prepend;
    Step& step = result_.steps_.emplace_back();
    step.kind = Step::Kind::Metaspace;
    step.literal = json.value("replacement", "▁");
    const std::string scheme =
        json.value("prepend_scheme", json.value("add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never")
      user_error("pre_tokenizer: Metaspace knows no prepend_scheme {}", scheme);
    step.prepend = scheme == "always"  ? Prepend::Always
                   : scheme == "first" ? Prepend::First
                                       : Prepend::Never;
    if (!json.value("split", true)) return;
    const std::string literal = step.literal;
    Step& split = result_.steps_.emplace_back();
    split.literal = literal;
    split.behaviour = Behaviour::MergedWithNext;
  }

  static Behaviour behaviour(const std::string& name) {
    if (name == "Isolated") return Behaviour::Isolated;
    if (name == "Removed") return Behaviour::Removed;
    if (name == "MergedWithPrevious") return Behaviour::MergedWithPrevious;
    if (name == "MergedWithNext") return Behaviour::MergedWithNext;
    if (name == "Contiguous") return Behaviour::Contiguous;
    user_error("pre_tokenizer: unknown behavior {}", name);
  }

  PreTokenizer& result_;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(const PreTokenizer& other) = default;
PreTokenizer& PreTokenizer::operator=(const PreTokenizer& other) = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

const std::string& PreTokenizer::json() const { return definition_.json; }
bool PreTokenizer::byte_level() const { return definition_.byte_level; }

const std::vector<std::string>& PreTokenizer::family_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Family& family : kFamilies) all.emplace_back(family.name);
    return all;
  }();
  return names;
}

PreTokenizer PreTokenizer::of_family(std::string_view name) {
  for (const Family& family : kFamilies)
    if (family.name == name)
      return PreTokenizerReader::read(family.pattern == kGpt2 ? byte_level_json(true)
                                                              : split_json(family.pattern));
  std::string known;
  for (const Family& family : kFamilies)
    known.append(known.empty() ? "" : ", ").append(family.name);
  user_error("unknown pre-tokenizer {} (known: {})", name, known);
}

PreTokenizer PreTokenizer::of_regex(const std::string& pattern) {
  if (valid_utf8_prefix(pattern) != pattern.size())
    user_error("the regular expression '{}' is not UTF-8", replace_invalid_utf8(pattern));
  return PreTokenizerReader::read(split_json(pattern));
}

PreTokenizer PreTokenizer::of_json(std::string_view json) {
  try {
    return PreTokenizerReader::read(Json::parse(json));
  } catch (const Json::exception& error) {
    user_error("pre_tokenizer: {}", error.what());
  }
}

void PreTokenizer::run(std::string_view text, bool at_start, Sink sink) {
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) run_steps(0, text.substr(0, valid), at_start, sink);
    text.remove_prefix(valid);
    std::size_t invalid = 0;
    while (invalid < text.size() && utf8_character_length(text.substr(invalid)) == 0) ++invalid;
    if (invalid > 0) sink(text.substr(0, invalid));
    text.remove_prefix(invalid);
    at_start = false;
  }
}

void PreTokenizer::run_steps(std::size_t index, std::string_view text, bool at_start, Sink sink) {
  if (index == steps_.size()) return sink(text);
  Step& step = steps_[index];
  const bool last = index + 1 == steps_.size();
  switch (step.kind) {
    case Step::Kind::Split:
      if (last) return step.split(text, sink);
      step.split(text, [&](std::string_view segment) {
        run_steps(index + 1, segment, at_start && segment.data() == text.data(), sink);
      });
      return;
    case Step::Kind::PrefixSpace:
      if (text.starts_with(' ')) return run_steps(index + 1, text, at_start, sink);
      step.buffer.assign(1, ' ').append(text);
      return run_steps(index + 1, step.buffer, at_start, sink);
    case Step::Kind::Metaspace:
      step.replace_spaces(text, at_start);
      return run_steps(index + 1, step.buffer, at_start, sink);
  }
}

std::string normalizer_json_of_family(std::string_view family) {
  return family == "qwen" ? R"({"type":"NFC"})" : "null";
}

}  // namespace kintsugi
