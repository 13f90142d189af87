#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "eval/text.h"
#include "eval/translation_scores.h"

namespace kintsugi {
namespace {

// Of the n-grams of one order.
struct ChrfOrder {
  std::int64_t hypothesis = 0, reference = 0, matches = 0;
};
using ChrfStatistics = std::vector<ChrfOrder>;  // characters 1 to char_order, then words

NgramCounts count_characters(std::string_view text, const std::vector<std::size_t>& starts,
                             std::size_t order) {
  NgramCounts counts;
  for (std::size_t i = 0; i + order < starts.size(); ++i)
    ++counts[std::string(text.substr(starts[i], starts[i + order] - starts[i]))];
  return counts;
}

// Words, with one punctuation character at the end or at the beginning as a word of its own.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (const std::string_view word : split_at_spaces(text)) {
    const bool single = code_point_at(word, 0).bytes == word.size();
    if (!single && is_ascii_punctuation(static_cast<unsigned char>(word.back()))) {
      words.emplace_back(word.substr(0, word.size() - 1));
      words.emplace_back(word.substr(word.size() - 1));
    } else if (!single && is_ascii_punctuation(static_cast<unsigned char>(word.front()))) {
      words.emplace_back(word.substr(0, 1));
      words.emplace_back(word.substr(1));
    } else {
      words.emplace_back(word);
    }
  }
  return words;
}

std::vector<NgramCounts> chrf_ngrams(std::string_view segment, const ChrfOptions& options) {
  const std::string text = options.lowercase ? lower(segment) : std::string(segment);
  std::string line;
  if (options.whitespace)
    line = text;
  else
    for (const std::string_view word : split_at_spaces(text)) line += word;
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < line.size(); at += code_point_at(line, at).bytes)
    starts.push_back(at);
  starts.push_back(line.size());
  std::vector<NgramCounts> orders;
  for (int order = 1; order <= options.char_order; ++order)
    orders.push_back(count_characters(line, starts, static_cast<std::size_t>(order)));
  const std::vector<std::string> words = words_of(text);
  for (int order = 1; order <= options.word_order; ++order)
    orders.push_back(count_ngrams(words, static_cast<std::size_t>(order)));
  return orders;
}

ChrfOrder match(const NgramCounts& hypothesis, const NgramCounts& reference) {
  ChrfOrder result;
  for (const auto& [ngram, count] : hypothesis) {
    if (!reference.empty()) result.hypothesis += count;
    const auto found = reference.find(ngram);
    if (found != reference.end()) result.matches += std::min(count, found->second);
  }
  for (const auto& [ngram, count] : reference) result.reference += count;
  return result;
}

double f_score(const ChrfStatistics& statistics, const ChrfOptions& options) {
  constexpr double kEps = 1e-16;
  const double factor = static_cast<double>(options.beta) * options.beta;
  double sum = 0, precisions = 0, recalls = 0;
  int used = 0;
  for (const auto& [hypothesis, reference, matches] : statistics) {
    const auto ratio = [&](std::int64_t total) {
      return total > 0 ? static_cast<double>(matches) / static_cast<double>(total) : kEps;
    };
    const double precision = ratio(hypothesis), recall = ratio(reference);
    const double below = factor * precision + recall;
    sum += below > 0 ? (1 + factor) * precision * recall / below : kEps;
    if (hypothesis == 0 || reference == 0) continue;
    precisions += precision;
    recalls += recall;
    ++used;
  }
  if (options.eps_smoothing) return 100 * sum / static_cast<double>(statistics.size());
  if (used == 0 || precisions + recalls == 0) return 0;
  precisions /= used;
  recalls /= used;
  return 100 * ((1 + factor) * precisions * recalls / (factor * precisions + recalls));
}

// Of the reference with the best score, the first of several.
ChrfStatistics best_statistics(std::string_view hypothesis,
                               const std::vector<std::string_view>& references,
                               const ChrfOptions& options) {
  const std::vector<NgramCounts> ngrams = chrf_ngrams(hypothesis, options);
  ChrfStatistics best;
  double best_score = -1;
  for (const std::string_view text : references) {
    const std::vector<NgramCounts> reference = chrf_ngrams(text, options);
    ChrfStatistics statistics;
    for (std::size_t i = 0; i < ngrams.size(); ++i)
      statistics.push_back(match(ngrams[i], reference[i]));
    const double score = f_score(statistics, options);
    if (score <= best_score) continue;
    best_score = score;
    best = std::move(statistics);
  }
  return best;
}

}  // namespace

void ChrfOptions::check() const {
  if (char_order < 1)
    user_error("the order of character n-grams is {}: it must be positive", char_order);
  if (word_order < 0) user_error("the order of word n-grams is {}: below 0", word_order);
  if (beta < 1) user_error("beta is {}: it must be positive", beta);
}

std::string ChrfOptions::name() const {
  return fmt::format("chrF{}{}", beta, std::string(static_cast<std::size_t>(word_order), '+'));
}

double corpus_chrf(const Segments& hypotheses, const References& references,
                   const ChrfOptions& options) {
  options.check();
  ChrfStatistics sum(static_cast<std::size_t>(options.char_order + options.word_order));
  for (std::size_t i = 0; i < hypotheses.size(); ++i) {
    const ChrfStatistics statistics = best_statistics(hypotheses[i], references.of(i), options);
    for (std::size_t order = 0; order < sum.size(); ++order) {
      sum[order].hypothesis += statistics[order].hypothesis;
      sum[order].reference += statistics[order].reference;
      sum[order].matches += statistics[order].matches;
    }
  }
  return f_score(sum, options);
}

std::vector<double> sentence_chrf(const Segments& hypotheses, const References& references,
                                  const ChrfOptions& options) {
  options.check();
  std::vector<double> scores;
  for (std::size_t i = 0; i < hypotheses.size(); ++i)
    scores.push_back(f_score(best_statistics(hypotheses[i], references.of(i), options), options));
  return scores;
}

std::string chrf_signature(const References& references, const ChrfOptions& options) {
  return fmt::format("nrefs:{}|case:{}|eff:{}|nc:{}|nw:{}|space:{}|version:{}", references.count(),
                     options.lowercase ? "lc" : "mixed", options.eps_smoothing ? "no" : "yes",
                     options.char_order, options.word_order, options.whitespace ? "yes" : "no",
                     kSacreBleuVersion);
}

}  // namespace kintsugi
