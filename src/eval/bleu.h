#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/segments.h"

namespace kintsugi {

// The tokenizers of sacreBLEU. 13a is that of WMT (mteval-v13a), Intl that of mteval-v14.
enum class BleuTokenizer { V13a, Intl, Char, None };

BleuTokenizer parse_bleu_tokenizer(std::string_view name);  // UserError if unknown
std::string_view to_string(BleuTokenizer tokenizer);        // 13a, intl, char, none

std::vector<std::string> bleu_tokens(std::string_view text, BleuTokenizer tokenizer);

// BLEU as sacreBLEU computes it.

// What replaces a precision of zero: 1 / (2^k total) for the k-th one, `smooth_value` matches, or
// nothing. AddK adds `smooth_value` to matches and totals of all orders but the first.
enum class BleuSmoothing { Exp, Floor, AddK, None };
BleuSmoothing parse_bleu_smoothing(std::string_view name);  // exp, floor, add-k, none
std::string_view to_string(BleuSmoothing smoothing);

struct BleuOptions {
  BleuTokenizer tokenizer = BleuTokenizer::V13a;
  bool lowercase = false;
  BleuSmoothing smoothing = BleuSmoothing::Exp;
  std::optional<double> smooth_value = {};  // default: 0.1 for Floor, 1 for AddK
  // Leaves out the orders that no hypothesis is long enough for; usual for single sentences.
  bool effective_order = false;
  int max_order = 4;

  void check() const;  // UserError
};

// Matches and totals of n-grams of each order, and lengths in tokens.
struct BleuStatistics {
  std::vector<double> counts, totals;  // whole numbers before smoothing
  std::int64_t hypothesis_length = 0, reference_length = 0;
};

struct Bleu {
  double score = 0;  // 0 to 100
  BleuStatistics statistics;
  std::vector<double> precisions;  // percent
  double brevity_penalty = 1;

  double length_ratio() const;
  std::string text() const;  // as sacreBLEU prints it, without "BLEU = "
};

Bleu bleu_of(BleuStatistics statistics, const BleuOptions& options);
Bleu corpus_bleu(const Segments& hypotheses, const References& references,
                 const BleuOptions& options);
// One score for each segment.
std::vector<Bleu> sentence_bleu(const Segments& hypotheses, const References& references,
                                const BleuOptions& options);
std::string bleu_signature(const References& references, const BleuOptions& options);

}  // namespace kintsugi
