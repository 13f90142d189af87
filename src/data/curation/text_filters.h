#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/yaml_reader.h"
#include "data/curation/text_measures.h"

namespace kintsugi {

template <>
inline constexpr EnumWords<2> kEnumWords<WordMode> = {"tokens", "whitespace"};

// The published quality filters, with datatrove's names, defaults, order and comparisons. A filter
// returns the first rule that a document breaks, such as "gopher_quality.stop_words", or nothing.
// Filters are constant: threads can share one.

// Of MassiveText (arXiv 2112.11446). A threshold of 0 turns its rule off.
struct GopherQuality {
  std::int64_t min_doc_words = 50;  // without words of punctuation only, as the lengths
  std::int64_t max_doc_words = 100'000;
  double min_avg_word_length = 3;
  double max_avg_word_length = 10;
  double max_symbol_word_ratio = 0.1;  // of # and of ellipses
  double max_bullet_lines_ratio = 0.9;
  double max_ellipsis_lines_ratio = 0.3;
  double max_non_alpha_words_ratio = 0.8;  // so named, but the least ratio of words with a letter
  std::int64_t min_stop_words = 2;         // different ones
  std::vector<std::string> stop_words = {"the", "be", "to", "of", "and", "that", "have", "with"};

  std::string_view removed_by(const TextMeasures& text) const;
};

// Of the same paper. A threshold of 0 turns off a rule of lines or paragraphs.
struct GopherRepetition {
  double dup_line_frac = 0.3;
  double dup_para_frac = 0.3;
  double dup_line_char_frac = 0.2;
  double dup_para_char_frac = 0.2;
  std::array<double, 3> top_n_grams = {0.2, 0.18, 0.16};                    // of 2, 3, 4 words
  std::array<double, 6> dup_n_grams = {0.15, 0.14, 0.13, 0.12, 0.11, 0.1};  // of 5 to 10 words

  std::string_view removed_by(const TextMeasures& text) const;
};

// Of C4 (Raffel et al., 2020): removes lines and citations, and then documents. 0: off.
struct C4Lines {
  std::int64_t max_word_length = 1000;
  bool remove_citations = true;
  bool filter_no_terminal_punct = true;
  std::int64_t min_words_per_line = 3;
  bool filter_lorem_ipsum = true;
  bool filter_javascript = true;
  bool filter_curly_bracket = true;
  bool filter_policy = true;
  std::int64_t min_num_sentences = 5;

  // A document that is removed keeps its text.
  std::string_view edit(std::string& text) const;

 private:
  enum class Verdict : std::uint8_t { Keep, Drop, LoremIpsum, CurlyBracket };
  Verdict judge(std::string& line) const;
};

// Of FineWeb (arXiv 2406.17557), for lines that are not blank.
struct FineWebQuality {
  double line_punct_thr = 0.12;
  bool line_punct_exclude_zero = false;  // keep documents in which no line ends a sentence
  double short_line_thr = 0.67;
  std::int64_t short_line_length = 30;
  double char_duplicates_ratio = 0.01;
  double new_line_ratio = 0.3;

  std::string_view removed_by(const TextMeasures& text) const;
};

template <class V>
void describe(V& v, GopherQuality& x) {
  v("min_doc_words", x.min_doc_words, at_least(0));
  v("max_doc_words", x.max_doc_words, at_least(0));
  v("min_avg_word_length", x.min_avg_word_length, at_least(0));
  v("max_avg_word_length", x.max_avg_word_length, at_least(0));
  v("max_symbol_word_ratio", x.max_symbol_word_ratio, at_least(0));
  v("max_bullet_lines_ratio", x.max_bullet_lines_ratio, at_least(0));
  v("max_ellipsis_lines_ratio", x.max_ellipsis_lines_ratio, at_least(0));
  v("max_non_alpha_words_ratio", x.max_non_alpha_words_ratio, between(0, 1));
  v("min_stop_words", x.min_stop_words, at_least(0));
  v("stop_words", x.stop_words);
}

template <class V>
void describe(V& v, GopherRepetition& x) {
  v("dup_line_frac", x.dup_line_frac, at_least(0));
  v("dup_para_frac", x.dup_para_frac, at_least(0));
  v("dup_line_char_frac", x.dup_line_char_frac, at_least(0));
  v("dup_para_char_frac", x.dup_para_char_frac, at_least(0));
  v("top_n_grams", x.top_n_grams, at_least(0));
  v("dup_n_grams", x.dup_n_grams, at_least(0));
}

template <class V>
void describe(V& v, C4Lines& x) {
  v("max_word_length", x.max_word_length, at_least(0));
  v("remove_citations", x.remove_citations);
  v("filter_no_terminal_punct", x.filter_no_terminal_punct);
  v("min_words_per_line", x.min_words_per_line, at_least(0));
  v("filter_lorem_ipsum", x.filter_lorem_ipsum);
  v("filter_javascript", x.filter_javascript);
  v("filter_curly_bracket", x.filter_curly_bracket);
  v("filter_policy", x.filter_policy);
  v("min_num_sentences", x.min_num_sentences, at_least(0));
}

template <class V>
void describe(V& v, FineWebQuality& x) {
  v("line_punct_thr", x.line_punct_thr, at_least(-1));
  v("line_punct_exclude_zero", x.line_punct_exclude_zero);
  v("short_line_thr", x.short_line_thr, at_least(0));
  v("short_line_length", x.short_line_length, at_least(0));
  v("char_duplicates_ratio", x.char_duplicates_ratio, at_least(0));
  v("new_line_ratio", x.new_line_ratio, at_least(0));
}

// The settings of one language, from a file of the FineWeb-2 project (configs/nld_Latn.yml), and
// what that project sets for all languages. They are applied in this order.
struct FineWeb2Thresholds {
  double language_score = 0;  // the least
  GopherRepetition repetition;
  FineWebQuality fineweb;
  GopherQuality quality;
};
FineWeb2Thresholds read_fineweb2_thresholds(const std::filesystem::path& path);

}  // namespace kintsugi
