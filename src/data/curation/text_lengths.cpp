#include "data/curation/text_lengths.h"

#include <algorithm>
#include <bit>

namespace kintsugi {

using Json = nlohmann::ordered_json;

// A word begins where white space ends.
TextLength length_of(std::string_view text) {
  const auto is_space = [](char c) { return (c == ' ') | (static_cast<unsigned char>(c - 9) < 5); };
  std::int64_t words = !text.empty() && !is_space(text[0]) ? 1 : 0;
#pragma omp simd reduction(+ : words)
  for (std::size_t i = 1; i < text.size(); ++i) words += is_space(text[i - 1]) & !is_space(text[i]);
  return {.bytes = std::ssize(text), .words = words};
}

// With the highest bit w: 2 w, and one more from √2 · 2^w on, compared as squares.
std::size_t LogHistogram::bin_of(std::int64_t size) {
  if (size < 2) return size < 1 ? 0 : 1;
  const auto value = static_cast<std::uint64_t>(std::min<std::int64_t>(size, UINT32_MAX));
  const auto highest = static_cast<std::size_t>(std::bit_width(value)) - 1;
  return 2 * highest + (value * value >> (2 * highest + 1) != 0 ? 1 : 0);
}

std::int64_t LogHistogram::edge(std::size_t bin) {
  if (bin < 2) return static_cast<std::int64_t>(bin);
  std::int64_t low = std::int64_t{1} << (bin / 2);
  if (bin % 2 == 0) return low;
  for (std::int64_t high = 2 * low; low < high;) {
    const std::int64_t middle = (low + high) / 2;
    if (bin_of(middle) < bin)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void LogHistogram::add(const LogHistogram& more) {
  for (std::size_t bin = 0; bin < kBins; ++bin) counts_[bin] += more.counts_[bin];
}

Json LogHistogram::json() const {
  const auto last = std::find_if(counts_.rbegin(), counts_.rend(), [](auto n) { return n != 0; });
  Json list = Json::array();
  for (auto it = counts_.begin(); it != last.base(); ++it) list.push_back(*it);
  return list;
}

LogHistogram LogHistogram::of_json(const Json& json) {
  LogHistogram histogram;
  for (std::size_t bin = 0; bin < std::min(json.size(), kBins); ++bin)
    histogram.counts_[bin] = json.at(bin).get<std::int64_t>();
  return histogram;
}

void LengthChange::add(const LengthChange& more) {
  bytes_before.add(more.bytes_before);
  words_before.add(more.words_before);
  bytes_after.add(more.bytes_after);
  words_after.add(more.words_after);
}

Json json_of(const LengthsByLanguage& lengths) {
  Json list = Json::array();
  for (const auto& [language, one] : lengths)
    list.push_back(
        {{"language", language},
         {"before", {{"bytes", one.bytes_before.json()}, {"words", one.words_before.json()}}},
         {"after", {{"bytes", one.bytes_after.json()}, {"words", one.words_after.json()}}}});
  return list;
}

LengthsByLanguage lengths_of(const Json& json) {
  LengthsByLanguage lengths;
  for (const Json& one : json) {
    const Json &before = one.at("before"), &after = one.at("after");
    lengths[one.at("language").get<std::string>()] = {
        .bytes_before = LogHistogram::of_json(before.at("bytes")),
        .words_before = LogHistogram::of_json(before.at("words")),
        .bytes_after = LogHistogram::of_json(after.at("bytes")),
        .words_after = LogHistogram::of_json(after.at("words"))};
  }
  return lengths;
}

}  // namespace kintsugi
