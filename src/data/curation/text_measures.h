#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/curation/words.h"

namespace kintsugi {

// What the filters ask about the text of one document. Each answer is computed when it is first
// asked for, so that several filters divide the text into words once. One object per thread; it
// keeps its buffers from text to text.
class TextMeasures {
 public:
  explicit TextMeasures(WordMode mode = WordMode::Tokens) : splitter_(mode) {}
  TextMeasures(std::string_view text, WordMode mode) : TextMeasures(mode) { set_text(text); }

  // Valid UTF-8, which must outlive the answers.
  void set_text(std::string_view text);
  std::string_view text() const { return text_; }

  std::int64_t characters() const;  // code points
  std::int64_t newlines() const;    // "\n"
  std::int64_t hashes() const;      // "#"
  std::int64_t ellipses() const;    // "..." and "…"

  const std::vector<Word>& words() const;
  struct WordCounts {
    std::int64_t words = 0;             // punctuation included
    std::int64_t solid = 0;             // with a character that is no punctuation
    std::int64_t solid_characters = 0;  // of these words
    std::int64_t with_letter = 0;
  };
  const WordCounts& word_counts() const;
  std::int64_t word_count() const;  // word_counts().words, sooner where words are not divided

  struct Lines {  // of str.splitlines
    std::int64_t lines = 0;
    std::int64_t bullets = 0;   // that begin with • or -
    std::int64_t ellipses = 0;  // that end in an ellipsis
  };
  const Lines& lines() const;

  struct FilledLines {  // between newlines, with a character that is not white space
    std::vector<std::int64_t> characters = {};  // of each
    std::int64_t ended = 0;                     // that end in a sentence terminal
    std::int64_t repeated_characters = 0;       // of lines that are there before
  };
  const FilledLines& filled_lines() const;

  struct Repeated {
    std::int64_t pieces = 0;
    std::int64_t repeated = 0;  // that are there before
    std::int64_t repeated_characters = 0;
  };
  const Repeated& paragraphs() const;     // of the stripped text, between two or more newlines
  const Repeated& newline_parts() const;  // of the text, between newlines

  // The characters of the most frequent n words in sequence (the first of them), times their
  // number; 0 with fewer than n words.
  static constexpr int kLongestTop = 4;
  std::int64_t top_n_gram_characters(int n) const;  // 2 to kLongestTop
  // The characters of n words in sequence that are there before; the search goes on after them.
  std::int64_t repeated_n_gram_characters(int n) const;

 private:
  // Strings, to find earlier equal ones.
  class StringSet {
   public:
    void clear(std::int64_t expected);
    bool insert(std::string_view text);  // false if it is there

   private:
    struct Entry {
      std::size_t hash = 0;
      std::string_view text = {};  // without data: free
    };
    Entry& find(std::size_t hash, std::string_view text);
    void grow();
    std::vector<Entry> entries_;
    std::size_t count_ = 0;
  };
  // The words without white space between them, with a rolling hash.
  struct Joined {
    std::string bytes = {};
    std::vector<std::uint32_t> begin = {};  // of each word, and the end
    std::vector<std::uint64_t> sum = {};    // of bytes x base^(bytes after them) before each word
  };
  struct Slot {
    std::uint32_t tag = 0;    // of the hash
    std::uint32_t place = 0;  // + 1; 0: free
  };

  Repeated repeated_parts(std::string_view text, std::size_t least_newlines) const;
  const Joined& joined() const;
  std::uint64_t hash_of(std::size_t word, std::size_t n) const;
  std::string_view bytes_of(std::size_t word, std::size_t n) const;
  std::int64_t characters_of(std::size_t word, std::size_t n) const;
  template <class Equal>
  std::size_t find_or_add(std::uint64_t hash, std::size_t place, Equal&& equal) const;
  std::size_t first_equal(std::size_t word, std::size_t n) const;
  void clear_slots() const;
  void find_first_words() const;
  void lengthen_grams() const;
  std::int64_t top_characters() const;

  std::string_view text_;
  mutable WordSplitter splitter_;
  mutable std::vector<Word> words_;
  mutable bool words_known_ = false;
  mutable std::optional<std::int64_t> characters_, newlines_, hashes_, ellipses_;
  mutable std::optional<WordCounts> word_counts_;
  mutable std::optional<Lines> lines_;
  mutable FilledLines filled_lines_;
  mutable bool filled_lines_known_ = false;
  mutable std::optional<Repeated> paragraphs_, newline_parts_;
  mutable StringSet strings_;
  mutable Joined joined_;
  mutable bool joined_known_ = false;
  mutable std::vector<Slot> slots_;
  mutable std::vector<std::uint32_t> first_words_;  // where the word at each place is first
  mutable std::vector<std::uint32_t> first_;        // and the grams_ words from there on
  mutable std::vector<std::uint32_t> previous_;     // first_ of one word less
  mutable std::vector<std::uint32_t> count_;  // of these that begin at a place for the first time
  mutable int grams_ = 0;
  mutable std::array<std::int64_t, kLongestTop + 1> top_ = {};
};

// f(part) for the parts of a text between `least` or more newlines.
template <class F>
void for_each_part(std::string_view text, std::size_t least, F&& f) {
  std::size_t begin = 0;
  for (std::size_t at = 0; (at = text.find('\n', at)) != text.npos;) {
    std::size_t end = at;
    while (end < text.size() && text[end] == '\n') ++end;
    if (end - at >= least) {
      f(text.substr(begin, at - begin));
      begin = end;
    }
    at = end;
  }
  f(text.substr(begin));
}

}  // namespace kintsugi
