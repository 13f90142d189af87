#include "data/curation/text_measures.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {
namespace {

constexpr std::string_view kEllipsisSign = "\xE2\x80\xA6";
constexpr std::string_view kBulletSign = "\xE2\x80\xA2";

constexpr std::uint64_t kRollingBase = 0x9E3779B97F4A7C15;

// kRollingBase^exponent; n words in sequence are rarely longer than the table.
std::uint64_t rolling_power(std::size_t exponent) {
  static constexpr std::array<std::uint64_t, 256> kPowers = [] {
    std::array<std::uint64_t, 256> powers{1};
    for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * kRollingBase;
    return powers;
  }();
  if (exponent < kPowers.size()) [[likely]]
    return kPowers[exponent];
  const std::uint64_t half = rolling_power(exponent / 2);
  return half * half * kPowers[exponent % 2];
}

std::uint64_t mixed_hash(std::uint64_t hash) {
  hash ^= hash >> 32;
  hash *= 0xD6E8FEB86659FD93;
  return hash ^ hash >> 32;
}

std::size_t slots_for(std::size_t entries) { return std::bit_ceil(2 * entries + 2); }
// 0 to `count` - 1, for 32 bits.
std::size_t scaled(std::uint64_t bits, std::size_t count) {
  return static_cast<std::size_t>((bits & 0xFFFFFFFF) * count >> 32);
}

// str.count
std::int64_t occurrences(std::string_view text, std::string_view what) {
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++count;
  return count;
}

bool ends_in_terminal(std::string_view line) {
  std::size_t length = 0;
  return (TextClasses::get().of_last(line, length) & TextClasses::Terminal) != 0;
}

}  // namespace

void TextMeasures::set_text(std::string_view text) {
  text_ = text;
  words_known_ = joined_known_ = filled_lines_known_ = false;
  characters_ = newlines_ = hashes_ = ellipses_ = {};
  word_counts_ = {};
  lines_ = {};
  paragraphs_ = newline_parts_ = {};
  grams_ = 0;
}

std::int64_t TextMeasures::characters() const {
  if (!characters_) characters_ = character_count(text_);
  return *characters_;
}

std::int64_t TextMeasures::newlines() const {
  if (!newlines_) newlines_ = byte_count(text_, '\n');
  return *newlines_;
}

std::int64_t TextMeasures::hashes() const {
  if (!hashes_) hashes_ = byte_count(text_, '#');
  return *hashes_;
}

std::int64_t TextMeasures::ellipses() const {
  if (!ellipses_) ellipses_ = occurrences(text_, "...") + occurrences(text_, kEllipsisSign);
  return *ellipses_;
}

const std::vector<Word>& TextMeasures::words() const {
  if (!words_known_) {
    words_.clear();
    splitter_.split(text_, words_);
    words_known_ = true;
  }
  return words_;
}

const TextMeasures::WordCounts& TextMeasures::word_counts() const {
  if (!word_counts_) {
    WordCounts& counts = word_counts_.emplace();
    for (const Word& word : words()) {
      ++counts.words;
      counts.solid += word.solid();
      counts.solid_characters += word.solid() ? word.characters() : 0;
      counts.with_letter += word.has_letter();
    }
  }
  return *word_counts_;
}

std::int64_t TextMeasures::word_count() const {
  if (words_known_ || splitter_.mode() != WordMode::Whitespace) return word_counts().words;
  return count_split_words(text_);
}

const TextMeasures::Lines& TextMeasures::lines() const {
  if (!lines_) {
    Lines& lines = lines_.emplace();
    for (std::string_view rest = text_; !rest.empty();) {
      const std::string_view line = strip_space(take_line(rest));
      ++lines.lines;
      lines.bullets += line.starts_with(kBulletSign) || line.starts_with('-');
      lines.ellipses += line.ends_with("...") || line.ends_with(kEllipsisSign);
    }
  }
  return *lines_;
}

const TextMeasures::FilledLines& TextMeasures::filled_lines() const {
  if (filled_lines_known_) return filled_lines_;
  filled_lines_.characters.clear();
  filled_lines_.ended = filled_lines_.repeated_characters = 0;
  strings_.clear(newlines() + 1);
  for_each_part(text_, 1, [&](std::string_view line) {
    if (strip_space(line).empty()) return;
    const std::int64_t length = character_count(line);
    filled_lines_.characters.push_back(length);
    filled_lines_.ended += ends_in_terminal(line);
    if (!strings_.insert(line)) filled_lines_.repeated_characters += length;
  });
  filled_lines_known_ = true;
  return filled_lines_;
}

// ---- repeated parts

void TextMeasures::StringSet::clear(std::int64_t expected) {
  entries_.assign(slots_for(static_cast<std::size_t>(std::min<std::int64_t>(expected, 1024))), {});
  count_ = 0;
}

// The entry of the text, or a free one.
TextMeasures::StringSet::Entry& TextMeasures::StringSet::find(std::size_t hash,
                                                              std::string_view text) {
  const std::size_t mask = entries_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    Entry& entry = entries_[at];
    if (entry.text.data() == nullptr || (entry.hash == hash && entry.text == text)) return entry;
  }
}

bool TextMeasures::StringSet::insert(std::string_view text) {
  const std::size_t hash = hash64(text);
  Entry& entry = find(hash, text);
  if (entry.text.data() != nullptr) return false;
  entry = {hash, text};
  if (2 * ++count_ > entries_.size()) grow();
  return true;
}

void TextMeasures::StringSet::grow() {
  std::vector<Entry> before(2 * entries_.size());
  before.swap(entries_);
  for (const Entry& entry : before)
    if (entry.text.data() != nullptr) find(entry.hash, entry.text) = entry;
}

TextMeasures::Repeated TextMeasures::repeated_parts(std::string_view text,
                                                    std::size_t least_newlines) const {
  Repeated found;
  strings_.clear(newlines() + 1);
  for_each_part(text, least_newlines, [&](std::string_view part) {
    ++found.pieces;
    if (strings_.insert(part)) return;
    ++found.repeated;
    found.repeated_characters += character_count(part);
  });
  return found;
}

const TextMeasures::Repeated& TextMeasures::paragraphs() const {
  if (!paragraphs_) paragraphs_ = repeated_parts(strip_space(text_), 2);
  return *paragraphs_;
}

const TextMeasures::Repeated& TextMeasures::newline_parts() const {
  if (!newline_parts_) newline_parts_ = repeated_parts(text_, 1);
  return *newline_parts_;
}

// ---- repeated words

const TextMeasures::Joined& TextMeasures::joined() const {
  if (joined_known_) return joined_;
  if (text_.size() >> 32 != 0)
    failure("a document of {} bytes is too long to look for repeated words", text_.size());
  const std::size_t count = words().size();
  joined_.bytes.clear();
  joined_.begin.resize(count + 1);
  joined_.sum.resize(count + 1);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    joined_.begin[i] = static_cast<std::uint32_t>(joined_.bytes.size());
    joined_.sum[i] = sum;
    const std::string_view word = words_[i].text();
    joined_.bytes += word;
    std::uint64_t own = 0;
    for (const char c : word) own = own * kRollingBase + static_cast<unsigned char>(c) + 1;
    sum = sum * rolling_power(word.size()) + own;
  }
  joined_.begin[count] = static_cast<std::uint32_t>(joined_.bytes.size());
  joined_.sum[count] = sum;
  joined_known_ = true;
  return joined_;
}

std::uint64_t TextMeasures::hash_of(std::size_t word, std::size_t n) const {
  const std::size_t bytes = joined_.begin[word + n] - joined_.begin[word];
  return mixed_hash(joined_.sum[word + n] - joined_.sum[word] * rolling_power(bytes));
}

std::int64_t TextMeasures::characters_of(std::size_t word, std::size_t n) const {
  std::int64_t characters = 0;
  for (std::size_t i = word; i < word + n; ++i) characters += words_[i].characters();
  return characters;
}

std::string_view TextMeasures::bytes_of(std::size_t word, std::size_t n) const {
  const std::size_t begin = joined_.begin[word];
  return std::string_view(joined_.bytes).substr(begin, joined_.begin[word + n] - begin);
}

// Fewer free ones if there are many, for their memory.
void TextMeasures::clear_slots() const {
  const std::size_t words = words_.size();
  slots_.assign(words < 1 << 16 ? slots_for(words) : 2 * words, Slot{});
}

// The place in slots_ with this hash that is equal to `place`; if there is none, `place` is added.
template <class Equal>
std::size_t TextMeasures::find_or_add(std::uint64_t hash, std::size_t place, Equal&& equal) const {
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = scaled(hash, slots_.size());; at = at + 1 == slots_.size() ? 0 : at + 1) {
    Slot& slot = slots_[at];
    if (slot.place == 0) return slot = {tag, static_cast<std::uint32_t>(place + 1)}, place;
    if (slot.tag == tag && equal(slot.place - 1)) return slot.place - 1;
  }
}

// The first word in slots_ from which n words have the same characters.
std::size_t TextMeasures::first_equal(std::size_t word, std::size_t n) const {
  return find_or_add(hash_of(word, n), word,
                     [&](std::size_t other) { return bytes_of(other, n) == bytes_of(word, n); });
}

void TextMeasures::find_first_words() const {
  const std::size_t count = joined().begin.size() - 1;
  clear_slots();
  first_words_.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    first_words_[i] = static_cast<std::uint32_t>(first_equal(i, 1));
  first_ = first_words_;
  grams_ = 1;
}

// Replaces first_ of grams_ words by that of one word more: equal sequences have equal beginnings
// and equal last words.
void TextMeasures::lengthen_grams() const {
  const auto before = static_cast<std::size_t>(grams_++);
  if (first_.empty()) return;
  previous_.swap(first_);
  first_.resize(previous_.size() - 1);
  count_.assign(first_.size(), 0);
  clear_slots();
  for (std::size_t i = 0; i < first_.size(); ++i) {
    const std::uint64_t key = std::uint64_t{previous_[i]} << 32 | first_words_[i + before];
    const std::size_t first =
        find_or_add(mixed_hash(key * kRollingBase), i, [&](std::size_t other) {
          return previous_[other] == previous_[i] &&
                 first_words_[other + before] == first_words_[i + before];
        });
    first_[i] = static_cast<std::uint32_t>(first);
    ++count_[first];
  }
}

std::int64_t TextMeasures::top_characters() const {
  if (first_.empty()) return 0;
  const auto n = static_cast<std::size_t>(grams_);
  const auto top = static_cast<std::size_t>(std::ranges::max_element(count_) - count_.begin());
  return (characters_of(top, n) + grams_ - 1) * count_[top];
}

std::int64_t TextMeasures::top_n_gram_characters(int n) const {
  if (grams_ == 0) find_first_words();
  while (grams_ < n) {
    lengthen_grams();
    top_[static_cast<std::size_t>(grams_)] = top_characters();
  }
  return top_[static_cast<std::size_t>(n)];
}

std::int64_t TextMeasures::repeated_n_gram_characters(int words) const {
  const auto n = static_cast<std::size_t>(words);
  const std::size_t count = joined().begin.size() - 1;
  clear_slots();
  std::int64_t characters = 0;
  for (std::size_t i = 0; i + n <= count;) {
    const bool repeated = first_equal(i, n) != i;
    if (repeated) characters += characters_of(i, n);
    i += repeated ? n : 1;
  }
  return characters;
}

}  // namespace kintsugi
