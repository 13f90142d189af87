#include "core/units.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <ctime>
#include <span>
#include <utility>

#include "core/error.h"

namespace kintsugi {
namespace {

using Unit = std::pair<std::string_view, double>;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

// Reads a leading number and leaves the rest; false when there is none.
bool take_number(std::string_view& text, double& value) {
  std::string digits;
  std::size_t used = 0;
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  // An underscore groups digits. "1e9" is a number, but "1e" is not: from_chars decides.
  for (; used < text.size() && (text[used] != '_' || used > 0); ++used) {
    const char c = text[used];
    const bool part = std::isdigit(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
                      c == '_' ||
                      ((c == 'e' || c == 'E') && used + 1 < text.size() &&
                       (std::isdigit(static_cast<unsigned char>(text[used + 1])) ||
                        text[used + 1] == '-' || text[used + 1] == '+')) ||
                      (c == '+' && used > 0 && (text[used - 1] == 'e' || text[used - 1] == 'E'));
    if (!part) break;
    if (c != '_' && c != '+') digits += c;
  }
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || result.ec != std::errc() || result.ptr != digits.data() + digits.size())
    return false;
  text = trimmed(text.substr(used));
  return true;
}

double with_unit(std::string_view text, std::span<const Unit> units, const char* what,
                 const char* example) {
  std::string_view rest = trimmed(text);
  double value = 0;
  if (take_number(rest, value)) {
    if (rest.empty()) return value;
    for (const auto& [name, factor] : units)
      if (rest == name) return value * factor;
  }
  user_error("'{}' is not {} (for example {})", text, what, example);
}

std::int64_t whole(double value, std::string_view text, const char* what) {
  if (std::abs(value) >= 9.0e18) user_error("'{}' is too large: it must be below 9e18", text);
  if (value != std::floor(value)) user_error("'{}' is not a whole number of {}", text, what);
  return static_cast<std::int64_t>(value);
}

constexpr Unit kCountUnits[] = {{"k", 1e3}, {"K", 1e3},  {"M", 1e6},  {"G", 1e9},
                                {"B", 1e9}, {"T", 1e12}, {"P", 1e15}, {"E", 1e18}};
constexpr Unit kByteUnits[] = {{"B", 1},        {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},
                               {"GB", 1e9},     {"TB", 1e12},    {"KiB", 0x1p10}, {"MiB", 0x1p20},
                               {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}};
constexpr Unit kTimeUnits[] = {{"ms", 1e-3}, {"s", 1},       {"sec", 1},
                               {"m", 60},    {"min", 60},    {"h", 3600},
                               {"d", 86400}, {"day", 86400}, {"days", 86400}};

}  // namespace

double parse_real(std::string_view text) { return with_unit(text, {}, "a number", "0.1 or 3e-4"); }

std::int64_t parse_count(std::string_view text) {
  return whole(with_unit(text, kCountUnits, "a whole number", "500, 4M or 1.5T"), text, "units");
}

std::int64_t parse_bytes(std::string_view text) {
  return whole(with_unit(text, kByteUnits, "a number of bytes", "4096, 500MB or 64GiB"), text,
               "bytes");
}

double parse_duration_s(std::string_view text) {
  const std::string wrong =
      fmt::format("'{}' is not a duration (for example 90s, 30min or 1h30min)", text);
  // The limit keeps durations within the range of a clock.
  const auto checked = [&](double seconds) {
    if (!(seconds >= 0 && seconds <= 1e9)) user_error("{}", wrong);
    return seconds;
  };
  std::string_view rest = trimmed(text);
  double total = 0;
  bool any = false;
  while (!rest.empty()) {
    double value = 0;
    if (!take_number(rest, value)) break;
    std::size_t letters = 0;
    while (letters < rest.size() && std::isalpha(static_cast<unsigned char>(rest[letters])))
      ++letters;
    const std::string_view unit = rest.substr(0, letters);
    const auto found = std::ranges::find_if(
        kTimeUnits, [&](const Unit& candidate) { return candidate.first == unit; });
    if (unit.empty() && !any && rest.empty()) return checked(value);
    any = found != std::end(kTimeUnits);
    if (!any) break;  // also for a last number without a unit: "1h30" is ambiguous
    total += checked(value * found->second);
    rest = trimmed(rest.substr(letters));
  }
  if (!any || !rest.empty()) user_error("{}", wrong);
  return total;
}

bool parse_bool(std::string_view text) {
  for (const auto word : {"true", "yes", "on", "True"})
    if (text == word) return true;
  for (const auto word : {"false", "no", "off", "False"})
    if (text == word) return false;
  user_error("'{}' is neither true nor false", text);
}

std::string format_count(double value) {
  for (const auto& [name, factor] :
       {Unit{"T", 1e12}, Unit{"B", 1e9}, Unit{"M", 1e6}, Unit{"k", 1e3}})
    if (std::abs(value) >= factor) return fmt::format("{:.4g} {}", value / factor, name);
  return fmt::format("{:.4g}", value);
}

std::string format_si(double value) {
  for (const auto& [name, factor] :
       {Unit{"P", 1e15}, Unit{"T", 1e12}, Unit{"G", 1e9}, Unit{"M", 1e6}, Unit{"k", 1e3}})
    if (std::abs(value) >= factor) return fmt::format("{:.4g} {}", value / factor, name);
  return fmt::format("{:.4g} ", value);
}

std::string format_bytes(double bytes) {
  for (const auto& [name, factor] : {Unit{"PiB", 0x1p50}, Unit{"TiB", 0x1p40}, Unit{"GiB", 0x1p30},
                                     Unit{"MiB", 0x1p20}, Unit{"KiB", 0x1p10}})
    if (std::abs(bytes) >= factor) return fmt::format("{:.4g} {}", bytes / factor, name);
  return fmt::format("{:.0f} B", bytes);
}

std::string format_duration(double seconds) {
  if (!(seconds < 1e12)) return "?";
  const auto total = static_cast<std::int64_t>(seconds + 0.5);
  if (total >= 86400) return fmt::format("{} d {:02} h", total / 86400, total % 86400 / 3600);
  if (total >= 3600) return fmt::format("{} h {:02} min", total / 3600, total % 3600 / 60);
  if (total >= 60) return fmt::format("{} min {:02} s", total / 60, total % 60);
  return seconds >= 10 ? fmt::format("{} s", total) : fmt::format("{:.2g} s", seconds);
}

std::string format_number(std::int64_t number, std::string_view thing) {
  return fmt::format("{} {}{}", number, thing, number == 1 ? "" : "s");
}

std::string synonym_of(std::string_view word, const std::vector<Synonym>& synonyms) {
  std::string plain(word);
  for (char& c : plain)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Synonym& one : synonyms)
    if (std::ranges::find(one.theirs, plain) != one.theirs.end()) return one.ours;
  return "";
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = std::exchange(row[0], static_cast<int>(i));
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

std::string iso_time(double unix_s) {
  const auto time = static_cast<std::time_t>(std::clamp(unix_s, 0.0, 2e11));
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[64];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace kintsugi
