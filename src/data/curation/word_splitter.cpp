// Texts as words, and words as sentences.
#include <algorithm>
#include <string>
#include <utility>

#include "data/curation/words.h"

namespace kintsugi {
namespace {

// Units that are split from a number. Spelled as in spaCy, where "тб" is missing.
constexpr std::u32string_view kUnits[] = {
    U"km",  U"km²",  U"km³",  U"m",   U"m²",  U"m³",   U"dm",  U"dm²",  U"dm³",  U"cm",  U"cm²",
    U"cm³", U"mm",   U"mm²",  U"mm³", U"ha",  U"µm",   U"nm",  U"yd",   U"in",   U"ft",  U"kg",
    U"g",   U"mg",   U"µg",   U"t",   U"lb",  U"oz",   U"m/s", U"km/h", U"kmh",  U"mph", U"hPa",
    U"Pa",  U"mbar", U"mb",   U"MB",  U"kb",  U"KB",   U"gb",  U"GB",   U"tb",   U"TB",  U"T",
    U"G",   U"M",    U"K",    U"%",   U"км",  U"км²",  U"км³", U"м",    U"м²",   U"м³",  U"дм",
    U"дм²", U"дм³",  U"см",   U"см²", U"см³", U"мм",   U"мм²", U"мм³",  U"нм",   U"кг",  U"г",
    U"мг",  U"м/с",  U"км/ч", U"кПа", U"Па",  U"мбар", U"Кб",  U"КБ",   U"кб",   U"Мб",  U"МБ",
    U"мб",  U"Гб",   U"ГБ",   U"гб",  U"Тб",  U"ТБ",   U"كم",  U"كم²",  U"كم³",  U"م",   U"م²",
    U"م³",  U"سم",   U"سم²",  U"سم³", U"مم",  U"مم²",  U"مم³", U"غرام", U"جرام", U"جم",  U"كغ",
    U"ملغ", U"كوب",  U"اكواب"};
constexpr std::size_t kLongestUnit = 5;

bool in_set(std::u32string_view set, char32_t c) { return set.find(c) != set.npos; }

}  // namespace

WordSplitter::Chunk WordSplitter::scan(std::string_view text) const {
  const TextClasses& classes = *classes_;
  Chunk chunk;
  std::size_t i = 0, continuations = 0;  // bytes that do not begin a character
  for (std::uint32_t found = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) [[likely]] {
      found = classes.of_ascii(byte);
      if ((found & TextClasses::Space) != 0) break;
      ++i;
    } else {
      std::size_t length = 0;
      found = classes.of(utf8_decode(text, i, length));
      if ((found & TextClasses::Space) != 0) break;
      i += length;
      continuations += length - 1;
    }
    chunk.bits |= found;
  }
  chunk.bytes = i;
  chunk.characters = static_cast<std::uint32_t>(i - continuations);
  return chunk;
}

void WordSplitter::split(std::string_view text, std::vector<Word>& words) {
  while (!text.empty()) {
    const Chunk chunk = scan(text);
    const std::string_view word(text.data(), chunk.bytes);
    text.remove_prefix(chunk.bytes);
    if (word.empty()) {
      std::size_t length = 0;
      classes_->at(text, 0, length);
      text.remove_prefix(length);
    } else if (mode_ == WordMode::Whitespace || !may_split(chunk.bits)) {
      words.emplace_back(word, chunk.characters, chunk.bits);
    } else if (!split_mark(word, words)) {
      has_digits_ = (chunk.bits & TextClasses::Digit) != 0;
      split_chunk(word, words);
    }
  }
}

bool WordSplitter::may_split(std::uint32_t bits) {
  using C = TextClasses;
  const bool unit = (bits & C::Digit) != 0 && (bits & (C::Upper | C::Lower)) != 0;
  return unit || (bits & C::Special) != 0;
}

// Most chunks are one word and a mark, as in "here," and "here.". Returns whether this one is.
bool WordSplitter::split_mark(std::string_view chunk, std::vector<Word>& words) const {
  using C = TextClasses;
  std::size_t length = 0;
  const std::uint32_t mark = classes_->of_last(chunk, length);
  const std::string_view word(chunk.data(), chunk.size() - length);
  if (word.empty() || ((mark & C::Edge) == 0 && chunk.back() != '.')) return false;
  std::uint32_t bits = 0, last = 0, characters = 0;
  for (std::size_t i = 0, step = 0; i < word.size(); i += step) {
    last = classes_->at(word, i, step);
    bits |= last;
    ++characters;
  }
  const bool splits = (mark & C::Edge) != 0 || (last & (C::Digit | C::Lower)) != 0;
  if (!splits || may_split(bits)) return false;
  words.emplace_back(word, characters, bits);
  words.emplace_back(chunk.substr(word.size()), 1, mark);
  return true;
}

// Prefixes and suffixes are split off in turn, and what is left is divided at its infixes.
void WordSplitter::split_chunk(std::string_view chunk, std::vector<Word>& words) {
  chunk_ = chunk;
  characters_.clear();
  suffixes_.clear();
  for (std::size_t i = 0, length = 0; i < chunk.size(); i += length) {
    const char32_t c = utf8_decode(chunk, i, length);
    characters_.push_back({c, classes_->of(c), i});
  }
  std::size_t begin = 0, end = characters_.size();
  characters_.push_back({0, 0, chunk.size()});
  for (std::size_t before = 0; begin < end && before != end - begin;) {
    before = end - begin;
    const std::size_t first = prefix(begin, end);
    if (first > 0) append(begin, begin + first, words);
    begin += first;
    const std::size_t last = suffix(begin, end);
    if (last > 0) suffixes_.emplace_back(end - last, end);
    end -= last;
  }
  if (begin < end) split_middle(begin, end, words);
  for (auto at = suffixes_.rbegin(); at != suffixes_.rend(); ++at)
    append(at->first, at->second, words);
}

void WordSplitter::split_middle(std::size_t begin, std::size_t end,
                                std::vector<Word>& words) const {
  bool infixes = false, dot = false;
  for (std::size_t i = begin; i < end; ++i) {
    infixes = infixes || is(i, TextClasses::Infix);
    dot = dot || code(i) == '.';
  }
  if (!infixes || (dot && is_url(begin, end))) return append(begin, end, words);
  std::size_t start = begin;
  for (std::size_t i = begin; i < end;) {
    const std::size_t length = is(i, TextClasses::Infix) ? infix(begin, i, end) : 0;
    if (length > 0) {
      if (i > start) append(start, i, words);
      append(i, i + length, words);
      start = i + length;
    }
    i += std::max<std::size_t>(length, 1);
  }
  if (start < end) append(start, end, words);
}

void WordSplitter::append(std::size_t begin, std::size_t end, std::vector<Word>& words) const {
  std::uint32_t bits = 0;
  for (std::size_t i = begin; i < end; ++i) bits |= characters_[i].bits;
  const std::size_t from = characters_[begin].at;
  words.emplace_back(chunk_.substr(from, characters_[end].at - from),
                     static_cast<std::uint32_t>(end - begin), bits);
}

std::size_t WordSplitter::dots(std::size_t begin, std::size_t end) const {
  std::size_t i = begin;
  while (i < end && code(i) == '.') ++i;
  return i - begin;
}

std::size_t WordSplitter::prefix(std::size_t begin, std::size_t end) const {
  using C = TextClasses;
  const char32_t c = code(begin);
  if (is(begin, C::Edge | C::Icon | C::Currency | C::Prefix)) return 1;
  if (c == '+') return begin + 1 == end || !is(begin + 1, C::Digit) ? 1 : 0;
  if (c == '.') {
    const std::size_t count = dots(begin, end);
    return count >= 2 ? count : 0;
  }
  const auto dollar_after = [&](std::size_t i) { return i < end && code(i) == '$'; };
  if (c == 'U' && begin + 1 < end && code(begin + 1) == 'S' && dollar_after(begin + 2)) return 3;
  return (c == 'C' || c == 'A') && dollar_after(begin + 1) ? 2 : 0;
}

// The longest of all that match: the search for a suffix starts at the left.
std::size_t WordSplitter::suffix(std::size_t begin, std::size_t end) const {
  using C = TextClasses;
  if (begin == end) return 0;
  const std::size_t last = end - 1;
  const char32_t c = code(last), previous = last > begin ? code(last - 1) : 0;
  const auto digit = [&](std::size_t back) {  // `back` characters before the last one
    return end - begin > back && is(last - back, C::Digit);
  };
  if (c == '.') {
    std::size_t first = last;
    while (first > begin && code(first - 1) == '.') --first;
    if (last > first) return end - first;
    return is_final_dot(begin, end) ? 1 : 0;
  }
  if (c == U'…' && previous == c) return 2;
  if ((c == 's' || c == 'S') && (previous == '\'' || previous == U'’')) return 2;
  if (c == '$' && previous == 'S' && end - begin > 2 && code(last - 2) == 'U' && digit(3)) return 3;
  if (c == '$' && (previous == 'C' || previous == 'A') && digit(2)) return 2;
  if (is(last, C::Edge | C::Icon | C::Dash)) return 1;
  if ((c == '+' || is(last, C::Currency)) && digit(1)) return 1;
  return unit(begin, end);
}

std::size_t WordSplitter::unit(std::size_t begin, std::size_t end) const {
  if (!has_digits_) return 0;
  for (std::size_t length = std::min(kLongestUnit, end - begin - 1); length > 0; --length) {
    const std::size_t from = end - length;
    if (!is(from - 1, TextClasses::Digit)) continue;
    const auto matches = [&](std::u32string_view unit) {
      if (unit.size() != length) return false;
      for (std::size_t i = 0; i < length; ++i)
        if (code(from + i) != unit[i]) return false;
      return true;
    };
    if (std::ranges::any_of(kUnits, matches)) return length;
  }
  return 0;
}

bool WordSplitter::is_final_dot(std::size_t begin, std::size_t end) const {
  using C = TextClasses;
  const std::size_t dot = end - 1;
  if (dot == begin) return false;
  if (is(dot - 1, C::Digit | C::Lower | C::Edge) || in_set(U"%²-+|", code(dot - 1))) return true;
  if (dot < begin + 2) return false;
  if (code(dot - 2) == U'°' && in_set(U"FfCcKk", code(dot - 1))) return true;
  return is(dot - 1, C::Upper) && is(dot - 2, C::Upper);
}

// The length of an infix at `at`; 0 if there is none.
std::size_t WordSplitter::infix(std::size_t begin, std::size_t at, std::size_t end) const {
  using C = TextClasses;
  constexpr unsigned kAlpha = C::Upper | C::Lower;
  const char32_t c = code(at);
  if (is(at, C::Icon) || c == U'…') return 1;
  if (c == '.')
    if (const std::size_t count = dots(at, end); count >= 2) return count;
  if (at == begin || at + 1 == end) return 0;
  const auto around = [&](unsigned before, unsigned after) {
    return is(at - 1, before) && is(at + 1, after);
  };
  if (c == '.') return around(C::Lower | C::Quote, C::Upper | C::Quote) ? 1 : 0;
  if (is(at, C::Operator) && is(at - 1, C::Digit) && (is(at + 1, C::Digit) || code(at + 1) == '-'))
    return 1;
  if (c == ',') return around(kAlpha, kAlpha) ? 1 : 0;
  if (is(at, C::Relation)) return around(kAlpha | C::Digit, kAlpha) ? 1 : 0;
  return is(at, C::Hyphen) && is(at - 1, kAlpha | C::Digit) ? hyphen(at, end) : 0;
}

// One to three hyphens, one or two general, or a tilde, with a letter after them.
std::size_t WordSplitter::hyphen(std::size_t at, std::size_t end) const {
  const char32_t c = code(at);
  const std::size_t most = c == '-' ? 3 : c == U'—' ? 2 : c == U'–' || c == '~' ? 1 : 0;
  std::size_t length = 0;
  while (length < most && at + length < end && code(at + length) == c) ++length;
  const std::size_t next = at + length;
  return length > 0 && next < end && is(next, TextClasses::Upper | TextClasses::Lower) ? length : 0;
}

// [scheme://][user@]host.domain[:port][/path], where the domain is in lower case.
bool WordSplitter::is_url(std::size_t begin, std::size_t end) const {
  if (is_host_and_path(begin, end)) return true;
  std::size_t i = begin;
  while (i < end && (is(i, TextClasses::WordLetter) || in_set(U"+-.", code(i)))) ++i;
  if (i >= begin + 2 && i + 3 < end && code(i) == ':' && code(i + 1) == '/' && code(i + 2) == '/' &&
      is_host_and_path(i + 3, end))
    return true;
  for (i = begin + 1; i < end; ++i)
    if (code(i) == '@' && is_host_and_path(i + 1, end)) return true;
  return false;
}

bool WordSplitter::is_host_and_path(std::size_t begin, std::size_t end) const {
  const auto in_name = [&](std::size_t i) {
    const char32_t c = code(i);
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= 0xA1 && c <= 0xFFFF);
  };
  std::size_t label = begin, i = begin;
  bool plain = true;  // this label has no characters that only the last one may have
  for (; i < end && !is(i, TextClasses::HostEnd); ++i) {
    if (code(i) == '.') {
      if (i == label || i - label > 64 || !plain || !in_name(label) || !in_name(i - 1))
        return false;
      label = i + 1;
      plain = true;
    } else if (!in_name(i) && !in_set(U"-_", code(i))) {
      if (!is(i, TextClasses::Lower)) return false;
      plain = false;
    }
  }
  if (label == begin || i - label < 2 || i - label > 63) return false;
  for (std::size_t k = label; k < i; ++k)
    if (!is(k, TextClasses::Lower)) return false;
  if (i < end && code(i) == ':') {
    std::size_t port = i + 1;
    while (port < end && is(port, TextClasses::Number)) ++port;
    if (port - i < 3 || port - i > 6) return false;
    i = port;
  }
  return i == end || in_set(U"/?#", code(i));
}

namespace {

bool is_punctuation(std::string_view word) {
  const TextClasses& classes = TextClasses::get();
  for (std::size_t i = 0, length = 0; i < word.size(); i += length)
    if ((classes.at(word, i, length) & TextClasses::Punctuation) == 0) return false;
  return true;
}

}  // namespace

std::int64_t sentence_count(std::span<const Word> tokens) {
  std::int64_t sentences = 1;
  bool ended = false;
  for (const Word& token : tokens) {
    if (token.characters() == 1 && (token.bits() & TextClasses::Terminal) != 0) {
      ended = true;
    } else if (ended && !is_punctuation(token.text())) {
      ++sentences;
      ended = false;
    }
  }
  return sentences;
}

}  // namespace kintsugi
