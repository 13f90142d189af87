#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/error.h"
#include "eval/text.h"
#include "eval/translation_scores.h"

namespace kintsugi {
namespace {

constexpr std::array<std::string_view, 4> kBleuSmoothings = {"exp", "floor", "add-k", "none"};

double smooth_value(const BleuOptions& options) {
  return options.smooth_value.value_or(options.smoothing == BleuSmoothing::AddK ? 1.0 : 0.1);
}

std::vector<std::string> tokens_of(std::string_view text, const BleuOptions& options) {
  const std::string line = options.lowercase ? lower(text) : std::string(text);
  return bleu_tokens(strip_right(line), options.tokenizer);
}

// The reference length that is closest to the hypothesis; the shorter of two.
std::int64_t closest_length(std::int64_t length, const std::vector<std::int64_t>& lengths) {
  return *std::min_element(lengths.begin(), lengths.end(), [&](std::int64_t a, std::int64_t b) {
    const std::int64_t far_a = std::abs(a - length), far_b = std::abs(b - length);
    return far_a != far_b ? far_a < far_b : a < b;
  });
}

BleuStatistics segment_statistics(std::string_view hypothesis,
                                  const std::vector<std::string_view>& references,
                                  const BleuOptions& options) {
  const std::vector<std::string> tokens = tokens_of(hypothesis, options);
  std::vector<std::vector<std::string>> reference_tokens;
  std::vector<std::int64_t> lengths;
  for (const std::string_view reference : references) {
    reference_tokens.push_back(tokens_of(reference, options));
    lengths.push_back(static_cast<std::int64_t>(reference_tokens.back().size()));
  }
  BleuStatistics result;
  result.hypothesis_length = static_cast<std::int64_t>(tokens.size());
  result.reference_length = closest_length(result.hypothesis_length, lengths);
  for (int order = 1; order <= options.max_order; ++order) {
    NgramCounts most;  // in any one reference
    for (const auto& reference : reference_tokens)
      for (const auto& [ngram, count] : count_ngrams(reference, static_cast<std::size_t>(order)))
        most[ngram] = std::max(most[ngram], count);
    std::int64_t matches = 0, total = 0;
    for (const auto& [ngram, count] : count_ngrams(tokens, static_cast<std::size_t>(order))) {
      total += count;
      const auto found = most.find(ngram);
      if (found != most.end()) matches += std::min(count, found->second);
    }
    result.counts.push_back(static_cast<double>(matches));
    result.totals.push_back(static_cast<double>(total));
  }
  return result;
}

void add(BleuStatistics& sum, const BleuStatistics& other) {
  for (std::size_t i = 0; i < sum.counts.size(); ++i) {
    sum.counts[i] += other.counts[i];
    sum.totals[i] += other.totals[i];
  }
  sum.hypothesis_length += other.hypothesis_length;
  sum.reference_length += other.reference_length;
}

double brevity_penalty(const BleuStatistics& statistics) {
  if (statistics.hypothesis_length >= statistics.reference_length) return 1;
  if (statistics.hypothesis_length == 0) return 0;
  return std::exp(1 - static_cast<double>(statistics.reference_length) /
                          static_cast<double>(statistics.hypothesis_length));
}

}  // namespace

BleuSmoothing parse_bleu_smoothing(std::string_view name) {
  for (std::size_t i = 0; i < kBleuSmoothings.size(); ++i)
    if (kBleuSmoothings[i] == name) return static_cast<BleuSmoothing>(i);
  user_error("unknown smoothing '{}': give exp, floor, add-k or none", name);
}

std::string_view to_string(BleuSmoothing smoothing) {
  return kBleuSmoothings.at(static_cast<std::size_t>(smoothing));
}

void BleuOptions::check() const {
  if (max_order < 1) user_error("the order of n-grams is {}: it must be positive", max_order);
  if (!smooth_value) return;
  if (smoothing != BleuSmoothing::Floor && smoothing != BleuSmoothing::AddK)
    user_error("smoothing '{}' takes no value: use it with floor or add-k", to_string(smoothing));
  if (!(*smooth_value >= 0)) user_error("the value of a smoothing is {}: below 0", *smooth_value);
}

double Bleu::length_ratio() const {
  if (statistics.reference_length == 0) return 0;
  return static_cast<double>(statistics.hypothesis_length) /
         static_cast<double>(statistics.reference_length);
}

std::string Bleu::text() const {
  std::vector<std::string> rounded;
  for (const double precision : precisions) rounded.push_back(fmt::format("{:.1f}", precision));
  return fmt::format("{:.2f} {} (BP = {:.3f} ratio = {:.3f} hyp_len = {} ref_len = {})", score,
                     fmt::join(rounded, "/"), brevity_penalty, length_ratio(),
                     statistics.hypothesis_length, statistics.reference_length);
}

Bleu bleu_of(BleuStatistics statistics, const BleuOptions& options) {
  Bleu result;
  result.brevity_penalty = brevity_penalty(statistics);
  const std::size_t orders = statistics.counts.size();
  result.precisions.assign(orders, 0);
  result.statistics = std::move(statistics);
  std::vector<double>&counts = result.statistics.counts, &totals = result.statistics.totals;
  if (std::all_of(counts.begin(), counts.end(), [](double count) { return count == 0; }))
    return result;
  std::size_t used = orders;
  double halving = 1;
  for (std::size_t i = 0; i < orders; ++i) {
    if (options.smoothing == BleuSmoothing::AddK && i > 0) {
      counts[i] += smooth_value(options);
      totals[i] += smooth_value(options);
    }
    if (totals[i] == 0) break;
    if (options.effective_order) used = i + 1;
    if (counts[i] != 0)
      result.precisions[i] = 100 * counts[i] / totals[i];
    else if (options.smoothing == BleuSmoothing::Exp)
      result.precisions[i] = 100 / ((halving *= 2) * totals[i]);
    else if (options.smoothing == BleuSmoothing::Floor)
      result.precisions[i] = 100 * smooth_value(options) / totals[i];
  }
  double logs = 0;
  for (std::size_t i = 0; i < used; ++i) {
    if (result.precisions[i] == 0) return result;
    logs += std::log(result.precisions[i]);
  }
  result.score = result.brevity_penalty * std::exp(logs / static_cast<double>(used));
  return result;
}

Bleu corpus_bleu(const Segments& hypotheses, const References& references,
                 const BleuOptions& options) {
  options.check();
  BleuStatistics sum = segment_statistics(hypotheses.at(0), references.of(0), options);
  for (std::size_t i = 1; i < hypotheses.size(); ++i)
    add(sum, segment_statistics(hypotheses[i], references.of(i), options));
  return bleu_of(std::move(sum), options);
}

std::vector<Bleu> sentence_bleu(const Segments& hypotheses, const References& references,
                                const BleuOptions& options) {
  options.check();
  std::vector<Bleu> scores;
  for (std::size_t i = 0; i < hypotheses.size(); ++i)
    scores.push_back(
        bleu_of(segment_statistics(hypotheses[i], references.of(i), options), options));
  return scores;
}

std::string bleu_signature(const References& references, const BleuOptions& options) {
  std::string smoothing(to_string(options.smoothing));
  if (options.smoothing == BleuSmoothing::Floor || options.smoothing == BleuSmoothing::AddK)
    smoothing += fmt::format("[{:.2f}]", smooth_value(options));
  return fmt::format("nrefs:{}|case:{}|eff:{}|tok:{}|smooth:{}|version:{}", references.count(),
                     options.lowercase ? "lc" : "mixed", options.effective_order ? "yes" : "no",
                     to_string(options.tokenizer), smoothing, kSacreBleuVersion);
}

}  // namespace kintsugi
