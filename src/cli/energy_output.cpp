#include "cli/energy_output.h"

#include <fmt/format.h>

#include <optional>

#include "core/table.h"

namespace kintsugi {
namespace {

using EnergyJson = nlohmann::ordered_json;

// Readings are some tenths of a second apart, and their time is that of the hardware.
constexpr double kUncoveredLimit_s = 0.3, kLostLimit_s = 0.02;

struct EnergyRow {
  std::string source, scope, kind;
  std::optional<double> joules = {}, watts = {};
  std::string note = {};
};

EnergyRow row_of(const EnergyView& view, const MeteredWindow& window, std::size_t i) {
  const MeterIdentity& identity = view.found.meters[i]->identity();
  const MeterTotal& total = window.totals[i];
  EnergyRow row{.source = identity.source,
                .scope = identity.scope,
                .kind = std::string(to_string(identity.kind))};
  // A lost interval is never left out silently; the ends of the window may be a little late.
  const bool lost = identity.kind != MeterKind::Estimate && !total.note().empty();
  const double allowed_s = lost ? kLostLimit_s : kUncoveredLimit_s;
  if (identity.level != EnergyLevel::Gpu && view.share.shared()) {
    row.note = view.share.reason();
  } else if (total.covered_s() > 0 && total.missed_s(window.seconds) <= allowed_s) {
    row.joules = total.joules();
    row.watts = total.joules() / total.covered_s();
    row.note = total.note();
  } else {
    row.note = fmt::format("{}; {:.1f} of {:.1f} s were metered: {:.0f} J",
                           !total.note().empty() ? total.note()
                           : identity.kind == MeterKind::Counter
                               ? "the counter was not updated until the end"
                               : "too few readings",
                           total.covered_s(), window.seconds, total.joules());
  }
  return row;
}

// Also of meters that are known but cannot be read.
std::vector<EnergyRow> rows_of(const EnergyView& view, const MeteredWindow& window) {
  std::vector<EnergyRow> rows;
  for (std::size_t i = 0; i < window.totals.size(); ++i) rows.push_back(row_of(view, window, i));
  for (const FoundMeters::Missing& missing : view.found.missing)
    if (!missing.scope.empty())
      rows.push_back(
          {.source = missing.source, .scope = missing.scope, .kind = "", .note = missing.reason});
  return rows;
}

// The sum of a level; without joules if one of its meters has none or something is left out.
EnergyRow sum_of(const EnergyView& view, const std::vector<EnergyRow>& rows, EnergyLevel level) {
  const LevelMeters& chosen = view.chosen[level];
  EnergyRow sum{.source = chosen.source, .scope = std::string(to_string(level)), .kind = ""};
  sum.note = chosen.meters.empty() ? chosen.reason : chosen.uncovered;
  if (!sum.note.empty()) return sum;
  sum.joules = sum.watts = 0;
  for (const std::size_t i : chosen.meters) {
    if (!rows[i].joules)
      return {.source = sum.source,
              .scope = sum.scope,
              .kind = "",
              .note = rows[i].scope + ": " + rows[i].note};
    *sum.joules += *rows[i].joules;
    *sum.watts += *rows[i].watts;
  }
  return sum;
}

EnergyJson or_null(const std::optional<double>& value) {
  return value ? EnergyJson(*value) : EnergyJson();
}
EnergyJson or_null(const std::string& text) {
  return text.empty() ? EnergyJson() : EnergyJson(text);
}

Table meters_table(const FoundMeters& found) {
  Table table({Column::text("scope", "scope"), Column::text("source", "source"),
               Column::text("kind", "kind"), Column::text("where", "detail")});
  for (const auto& meter : found.meters) {
    const MeterIdentity& one = meter->identity();
    table.add({one.scope, one.source, to_string(one.kind), one.detail});
  }
  return table;
}

Table window_table(const std::vector<EnergyRow>& rows) {
  Table table({Column::text("scope", "scope"), Column::text("source", "source"),
               Column::text("kind", "kind"), Column::number("joules", "joules", "{:.1f}"),
               Column::number("watts", "watts", "{:.1f}"), Column::text("note", "note")});
  for (const EnergyRow& row : rows)
    table.add({row.scope,
               row.source,
               or_null(row.kind),
               row.joules,
               row.watts,
               {or_null(row.note), row.note}});
  return table;
}

// The sources that are not there at all.
EnergyJson missing_json(const FoundMeters& found, bool with_scopes) {
  EnergyJson list = EnergyJson::array();
  for (const FoundMeters::Missing& missing : found.missing) {
    if (!with_scopes && !missing.scope.empty()) continue;
    list.push_back({{"source", missing.source},
                    {"scope", or_null(missing.scope)},
                    {"reason", missing.reason}});
  }
  return list;
}

std::string missing_lines(const FoundMeters& found) {
  std::string text;
  for (const FoundMeters::Missing& missing : found.missing)
    text += fmt::format("  {}{}{}: {}\n", missing.source, missing.scope.empty() ? "" : " ",
                        missing.scope, missing.reason);
  return text;
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

}  // namespace

std::string list_text(const EnergyView& view) {
  if (view.found.meters.empty())
    return trimmed("no meter was found:\n" + missing_lines(view.found));
  std::string text = meters_table(view.found).text();
  text += "\nused for:\n";
  for (const EnergyLevel level : kEnergyLevels) {
    const LevelMeters& chosen = view.chosen[level];
    text += fmt::format("  {:<6}  {}{}\n", to_string(level),
                        chosen.meters.empty() ? "none: " + chosen.reason : chosen.source,
                        chosen.uncovered.empty() ? "" : ", without " + chosen.uncovered);
  }
  if (view.found.missing.empty()) return trimmed(text);
  return trimmed(text + "\nnot available:\n" + missing_lines(view.found));
}

std::string list_json(const EnergyView& view) {
  EnergyJson levels = EnergyJson::object();
  for (const EnergyLevel level : kEnergyLevels) {
    const LevelMeters& chosen = view.chosen[level];
    levels[std::string(to_string(level))] = {{"source", or_null(chosen.source)},
                                             {"reason", or_null(chosen.reason)},
                                             {"uncovered", or_null(chosen.uncovered)}};
  }
  return trimmed(json_lines({{"meters", meters_table(view.found).json()},
                             {"levels", levels},
                             {"missing", missing_json(view.found, true)}}));
}

std::string window_text(const EnergyView& view, const MeteredWindow& window) {
  const std::vector<EnergyRow> rows = rows_of(view, window);
  if (rows.empty()) return trimmed("no meter was found:\n" + missing_lines(view.found));
  std::string text = window_table(rows).text();
  for (const EnergyLevel level : kEnergyLevels) {
    const EnergyRow sum = sum_of(view, rows, level);
    if (!sum.joules) continue;
    text += fmt::format("{}: {:.1f} J, {:.1f} W ({})\n", sum.scope, *sum.joules, *sum.watts,
                        sum.source);
  }
  return text + fmt::format("in {:.2f} s", window.seconds);
}

std::string window_json(const EnergyView& view, const MeteredWindow& window) {
  const std::vector<EnergyRow> rows = rows_of(view, window);
  EnergyJson levels = EnergyJson::object();
  for (const EnergyLevel level : kEnergyLevels) {
    const EnergyRow sum = sum_of(view, rows, level);
    levels[sum.scope] = {{"source", or_null(sum.source)},
                         {"joules", or_null(sum.joules)},
                         {"watts", or_null(sum.watts)},
                         {"note", or_null(sum.note)}};
  }
  return trimmed(json_lines({{"seconds", window.seconds},
                             {"meters", window_table(rows).json()},
                             {"levels", levels},
                             {"missing", missing_json(view.found, false)}}));
}

}  // namespace kintsugi
