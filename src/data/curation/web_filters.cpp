#include "data/curation/web_filters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/error.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

// ---- characters, as Python's str and re have them

bool is_upper(char32_t c) {
  const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  if (c < 0x80) return in('A', 'Z');
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU ||
         in(0x2160, 0x216F) || in(0x24B6, 0x24CF) || in(0x1F130, 0x1F149) || in(0x1F150, 0x1F169) ||
         in(0x1F170, 0x1F189);
}

// str.isdigit: decimal digits, and signs of a single digit.
bool is_digit(char32_t c) {
  static constexpr CharacterRange kOthers[] = {
      {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
      {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
      {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
      {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
      {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
  if (c < 0x80) return c >= '0' && c <= '9';
  return (TextClasses::get().of(c) & TextClasses::Number) != 0 ||
         std::ranges::any_of(kOthers, [c](const CharacterRange& range) {
           return c >= range.first && c <= range.last;
         });
}

// The letter that a pattern in lower case matches without regard to case.
char32_t folded(char32_t c) {
  if (c >= 'A' && c <= 'Z') return c + ('a' - 'A');
  return c == 0x212A ? U'k' : c == 0x17F ? U's' : c == 0x130 || c == 0x131 ? U'i' : c;
}

// Characters at the beginning of a text.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool at_end() const { return text_.empty(); }
  char32_t code() const {
    std::size_t length = 0;
    return utf8_decode(text_, 0, length);
  }
  bool is(std::uint32_t classes) const {
    std::size_t length = 0;
    return !at_end() && (TextClasses::get().at(text_, 0, length) & classes) != 0;
  }
  void step() {
    std::size_t length = 0;
    utf8_decode(text_, 0, length);
    text_.remove_prefix(length);
  }
  template <class Accept>
  std::size_t skip_while(Accept&& accept) {
    std::size_t count = 0;
    for (; !at_end() && accept(); ++count) step();
    return count;
  }
  // Passes these letters, if they are there.
  template <class Fold>
  bool take(std::string_view letters, Fold&& fold) {
    Cursor next = *this;
    for (const char letter : letters) {
      if (next.at_end() || fold(next.code()) != static_cast<unsigned char>(letter)) return false;
      next.step();
    }
    *this = next;
    return true;
  }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
};

// ---- lines of RefinedWeb

constexpr std::array<std::string_view, 12> kCounted = {
    "likes",     "shares",  "comments",  "retweets",  "reposts", "quotes",
    "bookmarks", "upvotes", "downvotes", "downloads", "views",   "followers"};

// "- 1,2K likes!"
bool is_counter(std::string_view line) {
  const auto lower = [](char32_t c) {
    return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c == 0x212A ? U'k' : c;
  };
  Cursor at(line);
  const auto no_word = [&] { return !at.is(TextClasses::WordLetter); };
  at.skip_while(no_word);
  if (!at.is(TextClasses::Number)) return false;
  at.skip_while([&] { return at.is(TextClasses::Number) || at.code() == ',' || at.code() == '.'; });
  if (!at.at_end())
    if (const char32_t c = lower(at.code()); c == 'k' || c == 'm' || c == 'b') at.step();
  if (at.skip_while([&] { return at.is(TextClasses::Space); }) == 0) return false;
  if (!std::ranges::any_of(kCounted, [&](auto word) { return at.take(word, lower); })) return false;
  at.skip_while(no_word);
  return at.at_end();
}

// Words of str.split that begin with a letter or a number.
std::int64_t solid_words(std::string_view text) {
  std::int64_t words = 0;
  bool after_space = true;
  for (Cursor at(text); !at.at_end(); at.step()) {
    const bool space = at.is(TextClasses::Space);
    words += after_space && at.is(TextClasses::WordLetter) && at.code() != '_';
    after_space = space;
  }
  return words;
}

template <class Accept>
double ratio_of(std::string_view line, Accept&& accept) {
  std::int64_t characters = 0, found = 0;
  for (Cursor at(line); !at.at_end(); at.step(), ++characters) found += accept(at.code());
  return static_cast<double>(found) / static_cast<double>(characters);
}

// Removes a phrase, and white space before it.
std::string without_phrase(std::string_view line, std::string_view phrase) {
  std::string left;
  for (Cursor at(line); !at.at_end();) {
    Cursor next = at;
    if (next.is(TextClasses::Space)) next.step();
    if (next.take(phrase, folded)) {
      at = next;
      continue;
    }
    utf8_append(left, at.code());
    at.step();
  }
  return left;
}

// "Read more" and any three characters at the end, as DCLM's pattern.
std::string_view without_read_more(std::string_view line) {
  constexpr std::size_t kCharacters = 12;
  std::size_t begin = line.size();
  const auto step_back = [&] {
    --begin;
    while (begin > 0 && (static_cast<unsigned char>(line[begin]) & 0xC0) == 0x80) --begin;
  };
  for (std::size_t i = 0; i < kCharacters; ++i) {
    if (begin == 0) return line;
    step_back();
  }
  if (!Cursor(line.substr(begin)).take("read more", folded)) return line;
  const std::size_t phrase = begin;
  if (begin == 0) return {};
  step_back();
  return line.substr(0, Cursor(line.substr(begin)).is(TextClasses::Space) ? begin : phrase);
}

std::string_view without_sign_in(std::string_view line) {
  Cursor at(line);
  if (!at.take("sign-in", folded)) return line;
  if (at.is(TextClasses::Space)) at.step();
  return at.rest();
}

// Lines of a document; after each step without white space at both ends.
class DocumentLines {
 public:
  explicit DocumentLines(std::string_view text) {
    for_each_line(text, [&](std::string_view line) { lines_.emplace_back(line); });
  }

  template <class Remove>
  void remove_if(Remove&& remove) {
    std::erase_if(lines_, remove);
  }
  // Replaces lines of few words; those of which nothing is left are removed.
  template <class Change>
  void change_short(std::int64_t most_words, Change&& change) {
    remove_if([&](std::string& line) {
      if (line.empty() || count_split_words(line) > most_words) return false;
      line = std::string(change(line));
      return strip_space(line).empty();
    });
    strip();
  }
  void strip() {
    const auto is_blank = [](const std::string& line) { return strip_space(line).empty(); };
    while (!lines_.empty() && is_blank(lines_.back())) lines_.pop_back();
    lines_.erase(lines_.begin(), std::ranges::find_if_not(lines_, is_blank));
    if (lines_.empty()) return;
    // Only the outer ends.
    lines_.front() = strip_space(lines_.front() + '|');
    lines_.front().pop_back();
    lines_.back() = std::string(strip_space('|' + lines_.back())).substr(1);
  }
  bool empty() const { return lines_.empty(); }
  std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (i > 0) text += '\n';
      text += lines_[i];
    }
    return text;
  }

 private:
  template <class Use>
  static void for_each_line(std::string_view text, Use&& use) {
    while (true) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      use(text.substr(0, end));
      if (end == text.size()) return;
      text.remove_prefix(end + 1);
    }
  }
  std::vector<std::string> lines_;
};

}  // namespace

std::string_view RefinedWebLines::edit(std::string& text) const {
  constexpr std::string_view kEmpty = "refinedweb_lines.empty";
  const std::int64_t before = solid_words(text);
  DocumentLines lines(text);
  const auto remove = [&](auto&& is_removed) {
    lines.remove_if([&](const std::string& line) { return !line.empty() && is_removed(line); });
    lines.strip();
  };
  remove([&](std::string_view line) { return ratio_of(line, is_upper) > max_uppercase_ratio; });
  remove([&](std::string_view line) { return ratio_of(line, is_digit) > max_numeric_ratio; });
  if (remove_counters) remove(is_counter);
  lines.remove_if([&](const std::string& line) {
    return !line.empty() && count_split_words(line) < min_words_per_line;
  });
  if (remove_phrases) {
    const std::int64_t most = max_words_of_phrase_lines;
    lines.change_short(
        most, [](const std::string& line) { return without_phrase(line, "items in cart"); });
    lines.change_short(most, without_read_more);
    lines.change_short(most, without_sign_in);
  }
  if (lines.empty() || before == 0) return kEmpty;
  std::string left = lines.text();
  if (left.empty()) return kEmpty;
  const auto removed = static_cast<double>(before - solid_words(left));
  if (removed / static_cast<double>(before) > max_removed_ratio) return "refinedweb_lines.words";
  text = std::move(left);
  return {};
}

// ---- C4

std::string_view C4Paragraphs::removed_by(const TextMeasures& text) const {
  std::int64_t paragraphs = 0;
  std::string_view rest = text.text();
  while (paragraphs < min_paragraphs) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    paragraphs += character_count(rest.substr(0, end)) >= min_paragraph_len;
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  return paragraphs < min_paragraphs ? "c4_paragraphs.few" : "";
}

namespace {

class BadWordStep : public DocumentStep {
 public:
  explicit BadWordStep(const C4BadWords& settings) : settings_(settings) {
    if (settings.lists.empty()) user_error("c4_bad_words: lists are missing");
    for (std::string& entry : list_entries(settings.lists)) {
      const std::string_view stripped = strip_space(entry);
      if (!stripped.empty()) entries_[first_bytes(stripped)].emplace_back(stripped);
    }
    chosen_ = {.keep = settings.keep_fraction, .languages = {}, .seed = settings.seed};
  }

  std::string_view apply(CuratedDocument& document, StepContext& context) const override {
    const std::string language =
        document.language.empty() ? document.members.text_of("language") : document.language;
    if (!settings_.language.empty() && language != settings_.language) return {};
    if (!has_bad_words(lower_text(document.text))) return {};
    ++context.notes["with bad words"];
    return chosen_.copies(document) > 0 ? "" : "c4_bad_words.listed";
  }

 private:
  // Two bytes of an entry tell most of them apart.
  static unsigned first_bytes(std::string_view text) {
    const auto byte = [&](std::size_t i) {
      return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    return text.size() < 2 ? byte(0) : byte(0) << 8 | byte(1);
  }

  bool has_bad_words(std::string_view text) const {
    const TextClasses& classes = TextClasses::get();
    bool may_begin = true;
    for (std::size_t i = 0, length = 0; i < text.size(); i += length) {
      if ((may_begin || settings_.inside_words) && begins_entry(text, i)) return true;
      may_begin = (classes.at(text, i, length) & TextClasses::WordLetter) == 0;
    }
    return false;
  }
  bool begins_entry(std::string_view text, std::size_t i) const {
    const std::string_view rest = text.substr(i);
    const auto is_there = [&](const std::string& entry) {
      if (!rest.starts_with(entry)) return false;
      std::size_t length = 0;
      return settings_.inside_words || rest.size() == entry.size() ||
             (TextClasses::get().at(rest, entry.size(), length) & TextClasses::WordLetter) == 0;
    };
    const auto among = [&](unsigned key) {
      const auto found = entries_.find(key);
      return found != entries_.end() && std::ranges::any_of(found->second, is_there);
    };
    return among(first_bytes(rest.substr(0, 2))) || among(first_bytes(rest.substr(0, 1)));
  }

  C4BadWords settings_;
  Sample chosen_;
  std::unordered_map<unsigned, std::vector<std::string>> entries_;  // by first_bytes
};

}  // namespace

std::unique_ptr<DocumentStep> make_step(const C4BadWords& settings) {
  return std::make_unique<BadWordStep>(settings);
}

}  // namespace kintsugi
