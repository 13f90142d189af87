#pragma once

#include <string>
#include <vector>

#include "eval/segments.h"

namespace kintsugi {

// chrF as sacreBLEU computes it: the F score of character n-grams, and with word_order > 0 of word
// n-grams too (chrF++: 2). With several references, that with the best score counts.
struct ChrfOptions {
  int char_order = 6;
  int word_order = 0;
  int beta = 2;             // weight of recall
  bool whitespace = false;  // white space is part of character n-grams
  // Counts an order without n-grams as almost 0, instead of leaving it out.
  bool eps_smoothing = false;
  bool lowercase = false;

  void check() const;        // UserError
  std::string name() const;  // chrF2, chrF2++
};

double corpus_chrf(const Segments& hypotheses, const References& references,
                   const ChrfOptions& options);
// One score for each segment.
std::vector<double> sentence_chrf(const Segments& hypotheses, const References& references,
                                  const ChrfOptions& options);
std::string chrf_signature(const References& references, const ChrfOptions& options);

}  // namespace kintsugi
