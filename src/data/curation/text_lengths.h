#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kintsugi {

// The length of a document. Words are what is between ASCII white space: unlike the words of the
// filters they cost next to nothing.
struct TextLength {
  std::int64_t bytes = 0, words = 0;
};
TextLength length_of(std::string_view text);

// How many things have which size. The edges of the bins are fixed, two for each power of two, so
// that the histograms of several jobs are added bin by bin.
class LogHistogram {
 public:
  static constexpr std::size_t kBins = 64;
  // The least size in a bin: 0, 1, 2, 3, 4, 6, 8, 12, 16, 23, …; from 2 on √2 to the power of the
  // bin, rounded up. The last bin has all from 2^31.5 on.
  static std::int64_t edge(std::size_t bin);
  static std::size_t bin_of(std::int64_t size);

  void add(std::int64_t size, std::int64_t count = 1) { counts_[bin_of(size)] += count; }
  void add(const LogHistogram& more);
  const std::array<std::int64_t, kBins>& counts() const { return counts_; }

  // A list without the empty bins at the end.
  nlohmann::ordered_json json() const;
  static LogHistogram of_json(const nlohmann::ordered_json& json);

 private:
  std::array<std::int64_t, kBins> counts_ = {};
};

// The lengths of documents as they were read and as they were written, copies too.
struct LengthChange {
  LogHistogram bytes_before, words_before, bytes_after, words_after;
  void add(const LengthChange& more);
};
using LengthsByLanguage = std::map<std::string, LengthChange>;  // "": none was found

nlohmann::ordered_json json_of(const LengthsByLanguage& lengths);
LengthsByLanguage lengths_of(const nlohmann::ordered_json& json);

}  // namespace kintsugi
