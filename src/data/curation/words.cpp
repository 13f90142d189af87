#include "data/curation/words.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace kintsugi {
namespace {

constexpr CharacterRange kWordPunctuation[] = {
    {0x0, 0x8},       {0xB, 0x1F},      {0x21, 0x2F},     {0x3A, 0x40},     {0x5B, 0x60},
    {0x7B, 0x9F},     {0xAB, 0xAB},     {0xB4, 0xB4},     {0xBB, 0xBB},     {0x2013, 0x2014},
    {0x2019, 0x2019}, {0x201C, 0x201E}, {0x2026, 0x2026}, {0x2236, 0x2236}, {0x2501, 0x2501},
    {0x25BA, 0x25BA}, {0x3001, 0x3002}, {0x3008, 0x300D}, {0x3010, 0x3011}, {0xFF01, 0xFF01},
    {0xFF05, 0xFF05}, {0xFF08, 0xFF09}, {0xFF0C, 0xFF0C}, {0xFF0E, 0xFF0E}, {0xFF11, 0xFF11},
    {0xFF1A, 0xFF1B}, {0xFF1F, 0xFF1F}, {0xFF5E, 0xFF5E}};

constexpr CharacterRange kSentenceTerminals[] = {
    {0x21, 0x21},       {0x2E, 0x2E},       {0x3F, 0x3F},       {0x589, 0x589},
    {0x61D, 0x61F},     {0x6D4, 0x6D4},     {0x700, 0x702},     {0x7F9, 0x7F9},
    {0x837, 0x837},     {0x839, 0x839},     {0x83D, 0x83E},     {0x964, 0x965},
    {0x104A, 0x104B},   {0x1362, 0x1362},   {0x1367, 0x1368},   {0x166E, 0x166E},
    {0x1735, 0x1736},   {0x17D4, 0x17D6},   {0x17D9, 0x17DA},   {0x1803, 0x1803},
    {0x1809, 0x1809},   {0x1944, 0x1945},   {0x1AA8, 0x1AAB},   {0x1B5A, 0x1B5B},
    {0x1B5E, 0x1B5F},   {0x1B7D, 0x1B7E},   {0x1C3B, 0x1C3C},   {0x1C7E, 0x1C7F},
    {0x203C, 0x203D},   {0x2047, 0x2049},   {0x2E2E, 0x2E2E},   {0x2E3C, 0x2E3C},
    {0x2E53, 0x2E54},   {0x3002, 0x3002},   {0xA4FF, 0xA4FF},   {0xA60E, 0xA60F},
    {0xA6F3, 0xA6F3},   {0xA6F7, 0xA6F7},   {0xA876, 0xA877},   {0xA8CE, 0xA8CF},
    {0xA92F, 0xA92F},   {0xA9C8, 0xA9C9},   {0xAA5D, 0xAA5F},   {0xAAF0, 0xAAF1},
    {0xABEB, 0xABEB},   {0xFE52, 0xFE52},   {0xFE56, 0xFE57},   {0xFF01, 0xFF01},
    {0xFF0E, 0xFF0E},   {0xFF1F, 0xFF1F},   {0xFF61, 0xFF61},   {0x10A56, 0x10A57},
    {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x11047, 0x11048}, {0x110BE, 0x110C1},
    {0x11141, 0x11143}, {0x111C5, 0x111C6}, {0x111CD, 0x111CD}, {0x111DE, 0x111DF},
    {0x11238, 0x11239}, {0x1123B, 0x1123C}, {0x112A9, 0x112A9}, {0x1144B, 0x1144C},
    {0x115C2, 0x115C3}, {0x115C9, 0x115D7}, {0x11641, 0x11642}, {0x1173C, 0x1173E},
    {0x11944, 0x11944}, {0x11946, 0x11946}, {0x11A42, 0x11A43}, {0x11A9B, 0x11A9C},
    {0x11C41, 0x11C42}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F44}, {0x16A6E, 0x16A6F},
    {0x16AF5, 0x16AF5}, {0x16B37, 0x16B38}, {0x16B44, 0x16B44}, {0x16E98, 0x16E98},
    {0x1BC9F, 0x1BC9F}, {0x1DA88, 0x1DA88}};

constexpr std::u32string_view kEdgeMarks = U"…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪";
constexpr std::u32string_view kQuoteMarks =
    U"'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉\u2329\u232A⟦⟧";

bool is_python_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

std::uint32_t category_class_of(char32_t c) {
  using C = TextClasses;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return C::Letter | C::Upper | C::WordLetter;
    case UTF8PROC_CATEGORY_LL:
      return C::Letter | C::Lower | C::WordLetter;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return C::Letter | C::Upper | C::Lower | C::WordLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return C::Upper | C::Lower;
    case UTF8PROC_CATEGORY_ND:
      return C::Number | C::WordLetter;
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return C::WordLetter;
    case UTF8PROC_CATEGORY_SO:
      return C::Icon;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return C::Punctuation;
    default:
      return 0;
  }
}

// The classes of all characters.
class ClassTable {
 public:
  ClassTable() : bits_(0x110000) {
    using C = TextClasses;
    for (char32_t c = 0; c < bits_.size(); ++c)
      bits_[c] = is_python_space(c) ? C::Space : category_class_of(c) | C::Solid;
    add({{'_', '_'}}, C::WordLetter);
    add({{'0', '9'}}, C::Digit);
    add(kSentenceTerminals, C::Terminal);
    remove_solid(kSentenceTerminals);
    remove_solid(kWordPunctuation);
    add(kEdgeMarks, C::Edge);
    add(kQuoteMarks, C::Edge | C::Quote);
    add(U"$£¥฿﷼", C::Currency);
    add({{0x20A0, 0x20BF}}, C::Currency);
    add(U"§%=—–", C::Prefix);
    add(U"—–", C::Dash);
    add(U"-–—~", C::Hyphen | C::Infix);
    add(U":<>=/", C::Relation | C::Infix);
    add(U"+-*^", C::Operator | C::Infix);
    add(U".…,", C::Infix);
    add(U":/?#", C::HostEnd);
    for (std::uint32_t& bits : bits_) {
      if ((bits & C::Icon) != 0) bits |= C::Infix;
      if ((bits & (C::Edge | C::Icon | C::Currency | C::Prefix | C::Infix)) != 0)
        bits |= C::Special;
    }
  }
  const std::uint32_t* page(std::size_t number) const { return &bits_[number << 8]; }

 private:
  void add(std::u32string_view set, std::uint32_t more) {
    for (const char32_t c : set) bits_[c] |= more;
  }
  void add(std::initializer_list<CharacterRange> ranges, std::uint32_t more) {
    add(std::span(ranges.begin(), ranges.size()), more);
  }
  void add(std::span<const CharacterRange> ranges, std::uint32_t more) {
    for (const CharacterRange& range : ranges)
      for (char32_t c = range.first; c <= range.last; ++c) bits_[c] |= more;
  }
  void remove_solid(std::span<const CharacterRange> ranges) {
    for (const CharacterRange& range : ranges)
      for (char32_t c = range.first; c <= range.last; ++c)
        bits_[c] &= ~std::uint32_t{TextClasses::Solid};
  }

  std::vector<std::uint32_t> bits_;
};

}  // namespace

std::span<const CharacterRange> datatrove_punctuation() { return kWordPunctuation; }
std::span<const CharacterRange> sentence_terminals() { return kSentenceTerminals; }

const TextClasses& TextClasses::get() {
  static const TextClasses classes;
  return classes;
}

TextClasses::TextClasses() {
  const ClassTable table;
  std::map<std::array<std::uint32_t, 256>, std::uint16_t> known;
  for (std::size_t page = 0; page < page_.size(); ++page) {
    std::array<std::uint32_t, 256> content;
    std::copy_n(table.page(page), content.size(), content.begin());
    const auto [entry, fresh] = known.emplace(content, static_cast<std::uint16_t>(pages_.size()));
    if (fresh) pages_.push_back(content);
    page_[page] = entry->second;
  }
  std::copy_n(table.page(0), ascii_.size(), ascii_.begin());
}

std::uint32_t TextClasses::of_last(std::string_view text, std::size_t& length) const {
  std::size_t last = text.size() - 1;
  while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
  return at(text, last, length);
}

std::string_view strip_space(std::string_view text) {
  const TextClasses& classes = TextClasses::get();
  std::size_t length = 0;
  while (!text.empty() && (classes.at(text, 0, length) & TextClasses::Space) != 0)
    text.remove_prefix(length);
  while (!text.empty() && (classes.of_last(text, length) & TextClasses::Space) != 0)
    text.remove_suffix(length);
  return text;
}

namespace {

// The number of bytes for which is_counted. Sums of single bytes are what vector units add fastest.
template <class IsCounted>
std::int64_t count_bytes(std::string_view text, IsCounted&& is_counted) {
  constexpr std::size_t kBlock = 192;
  std::int64_t count = 0;
  while (!text.empty()) {
    const std::size_t size = std::min(kBlock, text.size());
    std::uint8_t some = 0;
#pragma omp simd reduction(+ : some)
    for (std::size_t i = 0; i < size; ++i)
      some = static_cast<std::uint8_t>(some + (is_counted(text[i]) ? 1 : 0));
    count += some;
    text.remove_prefix(size);
  }
  return count;
}

}  // namespace

std::int64_t character_count(std::string_view text) {
  return count_bytes(text, [](char byte) { return static_cast<signed char>(byte) >= -64; });
}

std::int64_t byte_count(std::string_view text, char byte) {
  return count_bytes(text, [byte](char other) { return other == byte; });
}

namespace {

// White space that is ASCII; other bytes may begin another one.
[[gnu::always_inline]] inline bool is_ascii_space(char byte) {
  const auto c = static_cast<unsigned char>(byte);
  return (c == ' ') | (static_cast<unsigned char>(c - 0x9) <= 4) |
         (static_cast<unsigned char>(c - 0x1C) <= 3);
}
// Whether these bytes begin another white space.
[[gnu::always_inline]] inline bool begins_wide_space(char first, char second, char third) {
  const auto a = static_cast<unsigned char>(first), b = static_cast<unsigned char>(second),
             c = static_cast<unsigned char>(third);
  const bool general = (b == 0x80) & ((c <= 0x8A) | (c == 0xA8) | (c == 0xA9) | (c == 0xAF));
  return ((a == 0xC2) & ((b == 0x85) | (b == 0xA0))) | ((a == 0xE1) & (b == 0x9A)) |
         ((a == 0xE2) & (general | (b == 0x81))) | ((a == 0xE3) & (b == 0x80) & (c == 0x80));
}

}  // namespace

std::int64_t count_split_words(std::string_view text) {
  constexpr std::size_t kBlock = 64;
  const TextClasses& classes = TextClasses::get();
  std::int64_t words = 0;
  bool after_space = true;  // so that a word at i is not counted yet
  for (std::size_t i = 0, length = 0; i < text.size();) {
    std::uint8_t other = 1, begins = 0;
    if (i + kBlock + 2 < text.size()) {
      other = 0;
#pragma omp simd reduction(| : other) reduction(+ : begins)
      for (std::size_t k = i; k < i + kBlock; ++k) {
        other =
            static_cast<std::uint8_t>(other | begins_wide_space(text[k], text[k + 1], text[k + 2]));
        begins = static_cast<std::uint8_t>(
            begins + (is_ascii_space(text[k]) & !is_ascii_space(text[k + 1])));
      }
    }
    if (other == 0 &&
        !begins_wide_space(text[i + kBlock], text[i + kBlock + 1], text[i + kBlock + 2])) {
      words += begins + (after_space && !is_ascii_space(text[i]) ? 1 : 0);
      i += kBlock;
      after_space = false;
      while (i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) ++i;
      continue;
    }
    for (const std::size_t end = std::min(i + kBlock, text.size()); i < end; i += length) {
      const bool space = (classes.at(text, i, length) & TextClasses::Space) != 0;
      words += after_space && !space;
      after_space = space;
    }
  }
  return words;
}

namespace {

// Whether a byte ends a line or begins a character that does. Without branches, as below, for
// vector units.
bool may_end_line(char byte) {
  const auto c = static_cast<unsigned char>(byte);
  return (static_cast<unsigned char>(c - 0xA) <= 3) | (static_cast<unsigned char>(c - 0x1C) <= 2) |
         (c == 0xC2) | (c == 0xE2);
}

// The first such byte at or behind `begin`, or the end of the text.
std::size_t find_line_end(std::string_view text, std::size_t begin) {
  constexpr std::size_t kBlock = 32;
  for (; begin + kBlock <= text.size(); begin += kBlock) {
    std::uint8_t found = 0;
#pragma omp simd reduction(| : found)
    for (std::size_t i = 0; i < kBlock; ++i)
      found = static_cast<std::uint8_t>(found | may_end_line(text[begin + i]));
    if (found != 0) break;
  }
  while (begin < text.size() && !may_end_line(text[begin])) ++begin;
  return begin;
}

std::size_t line_end(std::string_view text) {
  if (text.starts_with("\r\n") || text.starts_with("\xC2\x85")) return 2;
  if (text.starts_with("\xE2\x80\xA8") || text.starts_with("\xE2\x80\xA9")) return 3;
  return static_cast<unsigned char>(text[0]) < 0x80 ? 1 : 0;
}

}  // namespace

std::string_view take_line(std::string_view& text) {
  std::size_t end = 0, length = 0;
  for (; (end = find_line_end(text, end)) < text.size(); ++end)
    if ((length = line_end(text.substr(end))) > 0) break;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + length);
  return line;
}

}  // namespace kintsugi
