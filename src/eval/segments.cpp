#include <fmt/format.h>

#include <set>
#include <utility>

#include "core/error.h"
#include "data/tokenizers/unicode.h"
#include "eval/task_data.h"
#include "eval/text.h"
#include "eval/translation_scores.h"

namespace kintsugi {

References::References(std::vector<Segments> sets, std::size_t hypotheses)
    : sets_(std::move(sets)) {
  if (hypotheses == 0) user_error("there is no segment to score");
  if (sets_.empty()) user_error("there are no references");
  for (std::size_t i = 0; i < sets_.size(); ++i)
    if (sets_[i].size() != hypotheses)
      user_error("{} hypotheses, but reference set {} has {} segments", hypotheses, i + 1,
                 sets_[i].size());
  for (std::size_t segment = 0; segment < hypotheses; ++segment)
    if (of(segment).empty()) user_error("segment {} has an empty reference", segment + 1);
}

std::vector<std::string_view> References::of(std::size_t segment) const {
  std::vector<std::string_view> texts;
  for (const Segments& set : sets_)
    if (!set[segment].empty()) texts.push_back(set[segment]);
  return texts;
}

std::string References::count() const {
  std::set<std::size_t> counts;
  for (std::size_t segment = 0; segment < sets_.front().size(); ++segment)
    counts.insert(of(segment).size());
  return counts.size() == 1 ? fmt::format("{}", *counts.begin()) : "var";
}

NgramCounts count_ngrams(std::span<const std::string> tokens, std::size_t order) {
  NgramCounts counts;
  for (std::size_t i = 0; i + order <= tokens.size(); ++i) {
    std::string ngram = tokens[i];
    for (std::size_t j = 1; j < order; ++j) ngram.append(1, ' ').append(tokens[i + j]);
    ++counts[std::move(ngram)];
  }
  return counts;
}

Segments read_segments(const std::string& path) {
  const std::string text = read_whole_text(path), name = path == "-" ? "standard input" : path;
  Segments segments;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (valid_utf8_prefix(line) != line.size())
      user_error("{} line {} is not UTF-8", name, segments.size() + 1);
    segments.emplace_back(strip_right(line));
    begin = end + 1;
  }
  if (segments.empty()) user_error("{} has no lines", name);
  return segments;
}

}  // namespace kintsugi
