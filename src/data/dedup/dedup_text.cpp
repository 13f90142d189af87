#include "data/dedup/dedup_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "data/curation/words.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

constexpr char32_t kCapitalSigma = 0x3A3, kDottedCapitalI = 0x130;

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

bool is_dedup_punctuation(char32_t c) {
  return std::ranges::any_of(datatrove_punctuation(), [&](const CharacterRange& range) {
    return c >= range.first && c <= range.last;
  });
}

bool is_space(char32_t c) { return (UnicodeClasses::get().of(c) & UnicodeClasses::Space) != 0; }

// Between the digits of a number.
bool is_separator(char32_t c) {
  return c == '.' || c == ',' || c == 0x60C || c == 0x66B || (c >= 0x2396 && c <= 0x2398);
}

// What becomes of a character.
enum class Fate : std::uint8_t {
  Copy,
  Space,
  Digit,
  Drop,      // a nonspacing mark
  DropStop,  // one that marks are not reordered across
  Replace,   // by the text at `at`
  Mark,      // it stays, but is reordered among its neighbours
  Sigma      // depends on the characters around it
};
struct CharacterRule {
  Fate fate = Fate::Copy;
  std::uint8_t length = 0;
  std::uint32_t at = 0;
  bool operator==(const CharacterRule&) const = default;
};

class CharacterRules {
 public:
  static const CharacterRules& get() {
    static const CharacterRules rules;
    return rules;
  }
  const CharacterRule& of(char32_t c) const { return pages_[page_[c >> 8]][c & 0xFF]; }
  std::string_view replacement(const CharacterRule& rule) const {
    return {replacements_.data() + rule.at, rule.length};
  }

 private:
  using Page = std::array<CharacterRule, 256>;

  CharacterRules() {
    pages_.emplace_back();  // where every character is copied
    for (std::size_t page = 0; page < page_.size(); ++page) {
      Page rules;
      for (std::size_t i = 0; i < 256; ++i) rules[i] = rule(static_cast<char32_t>(page << 8 | i));
      if (rules == pages_[0]) continue;
      page_[page] = static_cast<std::uint16_t>(pages_.size());
      pages_.push_back(rules);
    }
  }

  CharacterRule rule(char32_t c) {
    if (const auto kind = category(c); kind == UTF8PROC_CATEGORY_CN ||
                                       kind == UTF8PROC_CATEGORY_CO || kind == UTF8PROC_CATEGORY_CS)
      return {};
    if (c == kCapitalSigma) return {.fate = Fate::Sigma};
    const auto lower =
        c == kDottedCapitalI
            ? U'i'  // and a mark, which would be dropped
            : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    if (category(lower) == UTF8PROC_CATEGORY_ND) return {.fate = Fate::Digit};
    if (is_dedup_punctuation(lower) || is_space(lower)) return {.fate = Fate::Space};
    utf8proc_int32_t parts[8];
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(lower),
                                                           parts, 8, UTF8PROC_DECOMPOSE, &boundary);
    return decomposed(c, {parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, 8)});
  }

  CharacterRule decomposed(char32_t c, const std::vector<utf8proc_int32_t>& parts) {
    std::string kept, own;
    bool reordered = false, stop = false;
    for (const utf8proc_int32_t part : parts) {
      const auto character = static_cast<char32_t>(part);
      if (category(character) == UTF8PROC_CATEGORY_MN) {
        stop |= combining_class(character) == 0;
      } else {
        reordered |= combining_class(character) != 0;
        utf8_append(kept, character);
      }
    }
    if (kept.empty()) return {.fate = stop ? Fate::DropStop : Fate::Drop};
    utf8_append(own, c);
    if (kept == own && !reordered) return {};
    const CharacterRule rule{.fate = reordered ? Fate::Mark : Fate::Replace,
                             .length = static_cast<std::uint8_t>(kept.size()),
                             .at = static_cast<std::uint32_t>(replacements_.size())};
    replacements_ += kept;
    return rule;
  }

  std::array<std::uint16_t, 0x1100> page_{};
  std::vector<Page> pages_;
  std::string replacements_;
};

// Whether the capital sigma at `at` ends a word.
bool is_final_sigma_at(std::string_view text, std::size_t at) {
  std::size_t begin = at, length = 0;
  utf8_decode(text, at, length);
  std::size_t end = at + length;
  const auto before = [&] {
    if (begin == 0) return U'\0';
    --begin;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    return utf8_decode(text, begin, length);
  };
  const auto after = [&] {
    if (end >= text.size()) return U'\0';
    const char32_t c = utf8_decode(text, end, length);
    end += length;
    return c;
  };
  return is_final_sigma(before, after);
}

class DedupTextWriter {
 public:
  DedupTextWriter(std::string_view text, DedupText& result)
      : text_(text), result_(result), out_(result.text), rules_(CharacterRules::get()) {
    result_.words.clear();
    out_.resize(std::max(out_.size(), text.size() + kRoom));
  }

  void write() {
    for (std::size_t at = write_ascii(0); at < text_.size(); at = write_ascii(at))
      at = write_other(at);
    write_marks();
    out_.resize(length_);
  }

 private:
  // More than a character of the text is replaced by.
  static constexpr std::size_t kRoom = 64;

  // The space before a word replaces one of the text, so that only replacements need room.
  void put(char c) {
    if (!marks_.empty()) [[unlikely]]
      write_marks();
    put_in_order(c);
  }
  void put_in_order(char c) {
    char* to = out_.data() + length_;
    if (!in_word_) in_word_ = begin_word(to, out_.data());
    *to++ = c;
    length_ = static_cast<std::size_t>(to - out_.data());
  }
  void end_word() {
    write_marks();
    in_word_ = false;
  }
  void put(std::string_view characters, std::size_t rest) {
    if (length_ + characters.size() + rest + kRoom > out_.size())
      out_.resize(out_.size() + out_.size() / 2 + characters.size() + kRoom);
    for (const char c : characters) put(c);
  }

  // Writes letters and spaces up to something else, and returns where that is. With variables of
  // its own, because the written characters might change those of this object.
  std::size_t write_ascii(std::size_t at) {
    // In lower case, or a space; NUL: something else.
    static constexpr std::array<char, 256> kLower = [] {
      std::array<char, 256> lower{};
      for (std::size_t c = 0; c < 0x80; ++c) lower[c] = c >= '0' && c <= '9' ? '\0' : ' ';
      for (char c = 'a'; c <= 'z'; ++c)
        lower[static_cast<unsigned char>(c)] = lower[static_cast<unsigned char>(c - 32)] = c;
      return lower;
    }();
    if (at < text_.size() && static_cast<unsigned char>(text_[at]) < 0x80) write_marks();
    const char *from = text_.data() + at, *const end = text_.data() + text_.size();
    char *const begin = out_.data(), *to = begin + length_;
    bool inside = in_word_;
    for (; from != end; ++from) {
      const char letter = kLower[static_cast<unsigned char>(*from)];
      if (letter == '\0') break;
      inside = letter != ' ' && (inside || begin_word(to, begin));
      if (inside) *to++ = letter;
    }
    in_word_ = inside;
    length_ = static_cast<std::size_t>(to - begin);
    return static_cast<std::size_t>(from - text_.data());
  }
  bool begin_word(char*& to, const char* begin) {
    if (!result_.words.empty()) *to++ = ' ';
    result_.words.push_back(static_cast<std::uint32_t>(to - begin));
    return true;
  }

  std::size_t write_other(std::size_t at) {
    std::size_t length;
    const char32_t c = utf8_decode(text_, at, length);
    const CharacterRule& rule = rules_.of(c);
    const std::size_t rest = text_.size() - at;
    switch (rule.fate) {
      case Fate::Copy:
        put(text_.substr(at, length), rest);
        break;
      case Fate::Space:
        end_word();
        break;
      case Fate::Digit:
        return write_number(at);
      case Fate::Drop:
        break;
      case Fate::DropStop:
        write_marks();
        break;
      case Fate::Replace:
        put(rules_.replacement(rule), rest);
        break;
      case Fate::Mark:
        add_marks(rules_.replacement(rule), rest);
        break;
      case Fate::Sigma:
        put(is_final_sigma_at(text_, at) ? "ς" : "σ", rest);
        break;
    }
    return at + length;
  }

  // Digits, perhaps with a fraction, become one 0. Returns where they end.
  std::size_t write_number(std::size_t at) {
    put("0", text_.size() - at);
    at = skip_digits(at);
    std::size_t length;
    if (at < text_.size() && is_separator(utf8_decode(text_, at, length)))
      if (const std::size_t end = skip_digits(at + length); end > at + length) return end;
    return at;
  }
  std::size_t skip_digits(std::size_t at) const {
    for (std::size_t length; at < text_.size(); at += length)
      if (rules_.of(utf8_decode(text_, at, length)).fate != Fate::Digit) break;
    return at;
  }

  // A sequence of marks is sorted by their classes.
  void add_marks(std::string_view characters, std::size_t rest) {
    put("", rest);
    for (std::size_t at = 0, length; at < characters.size(); at += length) {
      const char32_t c = utf8_decode(characters, at, length);
      if (combining_class(c) == 0) {
        put(characters.substr(at, length), rest);
        continue;
      }
      room_for_marks_ += length;
      marks_.push_back(c);
    }
    if (length_ + room_for_marks_ + rest + kRoom > out_.size())
      out_.resize(out_.size() + out_.size() / 2 + room_for_marks_);
  }
  void write_marks() {
    if (marks_.empty()) return;
    std::stable_sort(marks_.begin(), marks_.end(), [](char32_t a, char32_t b) {
      return combining_class(a) < combining_class(b);
    });
    std::string characters;
    for (const char32_t c : marks_) utf8_append(characters, c);
    marks_.clear();
    room_for_marks_ = 0;
    for (const char c : characters) put_in_order(c);
  }

  std::string_view text_;
  DedupText& result_;
  std::string& out_;
  const CharacterRules& rules_;
  std::size_t length_ = 0;
  bool in_word_ = false;
  std::vector<char32_t> marks_;  // not written yet
  std::size_t room_for_marks_ = 0;
};

}  // namespace

void make_dedup_text(std::string_view text, DedupText& result) {
  DedupTextWriter(text, result).write();
}

}  // namespace kintsugi
