#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// Parse numbers as users write them. Throw UserError with the text if it is invalid.
double parse_real(std::string_view text);  // "1e-3", "0.1"
std::int64_t parse_count(
    std::string_view text);  // "4M" = 4,000,000; k M G T (and B = G); "1e9"; underscores
std::int64_t parse_bytes(std::string_view text);  // "64GiB", "500MB", "4096"
double parse_duration_s(std::string_view text);   // "30min", "90s", "1h30min", "2d", "45"; >= 0
bool parse_bool(std::string_view text);           // true false yes no on off

std::string format_count(double value);       // 1.24 M, 34.2 B
std::string format_si(double value);          // 98.2 G, for example for FLOP
std::string format_bytes(double bytes);       // 3.5 GiB
std::string format_duration(double seconds);  // 1 h 05 min, 12.3 s
std::string format_number(std::int64_t number, std::string_view thing);  // 1 GPU, 64 GPUs

// The name of an enumeration's value; `names` are in the order of the values.
template <class E>
constexpr std::string_view enum_name(E value, std::initializer_list<std::string_view> names) {
  const auto index = static_cast<std::size_t>(value);
  return index < names.size() ? names.begin()[index] : "?";
}

int edit_distance(std::string_view a, std::string_view b);

// Our name for a thing, and its names in other programs.
struct Synonym {
  std::string ours;
  std::vector<std::string> theirs;
};
// Our name for `word`; case, "-" and "_" do not matter. "" if there is none.
std::string synonym_of(std::string_view word, const std::vector<Synonym>& synonyms);

// The candidate closest to `word` by edit distance, or "" if none is close enough to be a typo.
template <class Range>
std::string nearest_word(std::string_view word, const Range& candidates) {
  std::string best;
  int best_distance = static_cast<int>(word.size()) / 3 + 2;
  for (const auto& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return best;
}

// "2026-11-16T12:00:00Z", from seconds since 1970.
std::string iso_time(double unix_s);

}  // namespace kintsugi
