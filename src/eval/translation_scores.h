#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kintsugi {

// What is compared by BLEU and chrF: segments of a translation, each with its references.
using Segments = std::vector<std::string>;

// A reference set has one reference for each hypothesis. An empty reference means that there is
// none for this segment in this set.
class References {
 public:
  // UserError if a set has another number of segments, or if a segment has no reference at all.
  References(std::vector<Segments> sets, std::size_t hypotheses);

  std::vector<std::string_view> of(std::size_t segment) const;
  std::string count() const;  // for signatures: "1", "2", or "var" if segments differ

 private:
  std::vector<Segments> sets_;
};

// The version of sacreBLEU whose rules this program follows; part of each signature.
constexpr std::string_view kSacreBleuVersion = "2.6.0";

using NgramCounts = std::unordered_map<std::string, std::int64_t>;
NgramCounts count_ngrams(std::span<const std::string> tokens, std::size_t order);

// Reads one segment per line from a text file (plain, gzip or zstd), or from standard input if the
// path is "-". Trailing white space is removed. UserError if a line is not UTF-8.
Segments read_segments(const std::string& path);

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
