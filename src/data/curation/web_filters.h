#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/yaml_reader.h"
#include "data/curation/steps.h"
#include "data/curation/text_measures.h"

namespace kintsugi {

// What two projects remove from the pages of a web crawl. Each follows a published program, rule by
// rule.

// RefinedWeb's rules of lines, as DCLM-Baseline has them, in its order.
struct RefinedWebLines {
  double max_uppercase_ratio = 0.5;     // of the characters of a line
  double max_numeric_ratio = 0.999999;  // so: lines of digits only
  bool remove_counters = true;          // "3 likes"
  std::int64_t min_words_per_line = 2;
  bool remove_phrases = true;  // "items in cart", "Read more...", "Sign-in" in short lines
  std::int64_t max_words_of_phrase_lines = 10;
  double max_removed_ratio = 0.05;  // of the words, before the document is removed

  // A document that is removed keeps its text.
  std::string_view edit(std::string& text) const;
};
template <class V>
void describe(V& v, RefinedWebLines& r) {
  v("max_uppercase_ratio", r.max_uppercase_ratio, between(0, 1));
  v("max_numeric_ratio", r.max_numeric_ratio, between(0, 1));
  v("remove_counters", r.remove_counters);
  v("min_words_per_line", r.min_words_per_line, at_least(0));
  v("remove_phrases", r.remove_phrases);
  v("max_words_of_phrase_lines", r.max_words_of_phrase_lines, at_least(0));
  v("max_removed_ratio", r.max_removed_ratio, between(0, 1));
}

// mC4's rule of paragraphs, which are lines.
struct C4Paragraphs {
  std::int64_t min_paragraphs = 3;
  std::int64_t min_paragraph_len = 200;  // characters; shorter ones do not count

  std::string_view removed_by(const TextMeasures& text) const;
};
template <class V>
void describe(V& v, C4Paragraphs& c) {
  v("min_paragraphs", c.min_paragraphs, at_least(0));
  v("min_paragraph_len", c.min_paragraph_len, at_least(0));
}

// C4's rule of bad words: an entry of a list anywhere between characters that belong to no word.
struct C4BadWords {
  std::vector<std::string> lists;  // files with an entry per line
  std::string language;            // of the documents that are searched; empty: all
  bool inside_words = false;       // also within words: Chinese, Japanese, Thai
  double keep_fraction = 0;        // of the documents with such words, chosen by a hash of the text
  std::int64_t seed = 0;
};
template <class V>
void describe(V& v, C4BadWords& c) {
  v("lists", c.lists);
  v("language", c.language);
  v("inside_words", c.inside_words);
  v("keep_fraction", c.keep_fraction, between(0, 1));
  v("seed", c.seed, at_least(0));
}
std::unique_ptr<DocumentStep> make_step(const C4BadWords& settings);

}  // namespace kintsugi
