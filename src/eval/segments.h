#pragma once

#include <cstdint>
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

}  // namespace kintsugi
