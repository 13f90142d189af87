#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/tokenizers/unicode.h"

namespace kintsugi {

// The words of a text as the published quality filters count them. All texts are valid UTF-8, and
// white space is that of Python's str: split, strip and splitlines.

// The characters from `first` to `last`.
struct CharacterRange {
  char32_t first, last;
};
// Datatrove's set of punctuation: a word with no other character is not counted as a word.
std::span<const CharacterRange> datatrove_punctuation();
// The characters that end a sentence in any script: Unicode 15's Sentence_Terminal and those of
// Khmer.
std::span<const CharacterRange> sentence_terminals();

class TextClasses {
 public:
  enum : std::uint32_t {
    Space = 1 << 0,        // str.isspace
    Letter = 1 << 1,       // str.isalpha
    Upper = 1 << 2,        // a letter or mark that is not in lower case
    Lower = 1 << 3,        // a letter or mark that is not in upper case
    Number = 1 << 4,       // \d
    Digit = 1 << 5,        // 0 to 9
    WordLetter = 1 << 6,   // \w
    Solid = 1 << 7,        // neither datatrove's punctuation nor a sentence terminal
    Terminal = 1 << 8,     // a sentence terminal
    Punctuation = 1 << 9,  // Unicode's general category P

    // How words are divided.
    Edge = 1 << 10,      // a mark or quote that is split from both ends
    Quote = 1 << 11,     // a quote among these
    Icon = 1 << 12,      // a symbol: emoji, arrows, box drawing
    Currency = 1 << 13,  //
    Prefix = 1 << 14,    // split from the beginning, but not among these
    Dash = 1 << 15,      // — and –
    Hyphen = 1 << 16,    // between letters: - – — ~
    Relation = 1 << 17,  // between letters: : < > = /
    Operator = 1 << 18,  // between digits: + - * ^
    Infix = 1 << 19,     // may divide a word
    Special = 1 << 20,   // may divide or be split from a word
    HostEnd = 1 << 21    // : / ? #
  };
  static constexpr int kBits = 22;

  static const TextClasses& get();  // initialized on first use
  std::uint32_t of(char32_t c) const { return c < 0x110000 ? pages_[page_[c >> 8]][c & 0xFF] : 0; }
  std::uint32_t of_ascii(unsigned char c) const { return ascii_[c]; }
  // Of the character at `position`, which has `length` bytes.
  std::uint32_t at(std::string_view text, std::size_t position, std::size_t& length) const {
    const auto byte = static_cast<unsigned char>(text[position]);
    if (byte < 0x80) return length = 1, ascii_[byte];
    return of(utf8_decode(text, position, length));
  }
  std::uint32_t of_last(std::string_view text, std::size_t& length) const;

 private:
  TextClasses();
  std::array<std::uint32_t, 128> ascii_;
  std::array<std::uint16_t, 0x1100> page_;
  std::vector<std::array<std::uint32_t, 256>> pages_;  // without duplicates
};

// str.strip
std::string_view strip_space(std::string_view text);

// The number of words of str.split.
std::int64_t count_split_words(std::string_view text);

// The number of characters, and of a byte.
std::int64_t character_count(std::string_view text);
std::int64_t byte_count(std::string_view text, char byte);

// The first line of str.splitlines, which is removed from `text` with its end.
std::string_view take_line(std::string_view& text);

enum class WordMode : std::uint8_t {
  // White space divides words, and punctuation, quotes, symbols and units are words of their own:
  // the rules of spaCy's tokenizers that all languages share. Contractions ("don't"), abbreviations
  // and emoticons, which each language lists, are not divided.
  Tokens,
  Whitespace  // str.split
};

// In 16 bytes, as a document of 20 MB has millions of words.
class Word {
 public:
  // `bits`: of TextClasses that any of the characters has.
  Word(std::string_view text, std::uint32_t characters, std::uint32_t bits)
      : data_(text.data()),
        bytes_(static_cast<std::uint32_t>(text.size())),
        packed_(bits | std::min(bytes_ - characters, kUncounted) << TextClasses::kBits) {}

  std::string_view text() const { return {data_, bytes_}; }
  std::uint32_t bits() const { return packed_; }  // and more above TextClasses
  std::uint32_t characters() const {
    const std::uint32_t more = packed_ >> TextClasses::kBits;
    return more < kUncounted ? bytes_ - more : static_cast<std::uint32_t>(character_count(text()));
  }
  bool solid() const { return (packed_ & TextClasses::Solid) != 0; }
  bool has_letter() const { return (packed_ & TextClasses::Letter) != 0; }

 private:
  // So many or more bytes do not begin a character.
  static constexpr std::uint32_t kUncounted = (1u << (32 - TextClasses::kBits)) - 1;
  const char* data_;
  std::uint32_t bytes_;
  std::uint32_t packed_;
};

// One object per thread.
class WordSplitter {
 public:
  explicit WordSplitter(WordMode mode) : mode_(mode), classes_(&TextClasses::get()) {}

  // Appends the words of the text.
  void split(std::string_view text, std::vector<Word>& words);
  WordMode mode() const { return mode_; }

 private:
  struct Character {
    char32_t code;
    std::uint32_t bits;
    std::size_t at;
  };
  struct Chunk {  // up to white space
    std::size_t bytes = 0;
    std::uint32_t characters = 0, bits = 0;
  };
  Chunk scan(std::string_view text) const;
  static bool may_split(std::uint32_t bits);
  bool split_mark(std::string_view chunk, std::vector<Word>& words) const;
  void split_chunk(std::string_view chunk, std::vector<Word>& words);
  void split_middle(std::size_t begin, std::size_t end, std::vector<Word>& words) const;
  void append(std::size_t begin, std::size_t end, std::vector<Word>& words) const;
  std::size_t dots(std::size_t begin, std::size_t end) const;
  std::size_t prefix(std::size_t begin, std::size_t end) const;
  std::size_t suffix(std::size_t begin, std::size_t end) const;
  std::size_t unit(std::size_t begin, std::size_t end) const;
  bool is_final_dot(std::size_t begin, std::size_t end) const;
  std::size_t infix(std::size_t begin, std::size_t at, std::size_t end) const;
  std::size_t hyphen(std::size_t at, std::size_t end) const;
  bool is_url(std::size_t begin, std::size_t end) const;
  bool is_host_and_path(std::size_t begin, std::size_t end) const;
  char32_t code(std::size_t i) const { return characters_[i].code; }
  bool is(std::size_t i, unsigned bits) const { return (characters_[i].bits & bits) != 0; }

  WordMode mode_;
  const TextClasses* classes_;
  std::string_view chunk_;
  std::vector<Character> characters_;  // of the chunk
  bool has_digits_ = false;            // the chunk
  std::vector<std::pair<std::size_t, std::size_t>> suffixes_;
};

// The number of sentences of a line: each begins with a word after a sentence terminal.
std::int64_t sentence_count(std::span<const Word> tokens);

}  // namespace kintsugi
