#include "report/documents/markdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "core/json_members.h"
#include "core/statistics.h"
#include "core/table.h"
#include "core/units.h"
#include "energy/carbon.h"
#include "report/runs/run_summary.h"

namespace kintsugi {
namespace {

// The finite values of a key.
std::vector<double> values_of(const StepSeries& series, const std::string& key) {
  std::vector<double> values;
  for (std::size_t row = 0; row < series.rows(); ++row)
    if (const float value = series.value(key, row); std::isfinite(value))
      values.push_back(static_cast<double>(value));
  return values;
}

std::optional<double> median_of(const StepSeries& series, const std::string& key) {
  const std::vector<double> values = values_of(series, key);
  return values.empty() ? std::nullopt : std::optional(median(values));
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// A series of very many steps keeps means of neighbours: the mean that has the step.
float loss_at(const StepSeries& series, std::int64_t step) {
  const std::size_t row = series.first_row_after(static_cast<double>(step) - 0.5);
  if (row == series.rows()) return StepColumn::kNone;
  const bool merged = series.records() > static_cast<std::int64_t>(series.rows());
  if (series.step(row) != static_cast<double>(step) && !merged) return StepColumn::kNone;
  return series.value("loss", row);
}

float valid_between(const StepSeries& series, std::int64_t above, std::int64_t step) {
  std::size_t row = series.first_row_after(static_cast<double>(step));
  for (; row > 0 && series.step(row - 1) > static_cast<double>(above); --row)
    if (const float value = series.value("valid_loss", row - 1); !std::isnan(value)) return value;
  return StepColumn::kNone;
}

using MarkdownJson = nlohmann::ordered_json;
using DocumentRuns = std::vector<DocumentRun>;

constexpr std::size_t kMostAttemptRows = 50, kMostEventRows = 50;  // of one run
constexpr const char* kMissing = "–";

// Empty if no run has what the table shows.
std::string section(const std::string& title, const std::string& introduction, const Table& table,
                    const std::string& notes = "") {
  if (table.empty()) return "";
  return fmt::format("## {}\n\n{}{}{}{}{}", title, introduction, introduction.empty() ? "" : "\n\n",
                     table.markdown(), notes.empty() ? "" : "\n", notes);
}

std::string ending(const MarkdownJson& json) {
  const auto code = number_at(json, "exit_code");
  return ending_text(text_at(json, "state"), text_at(json, "reason"),
                     code ? fmt::format("{:.0f}", *code) : "");
}

std::string summary_section(const DocumentRuns& runs) {
  Table table({Column::text("run"), Column::text("state"), Column::text("model"),
               Column::number("ranks", "", "{:.0f}"), Column::number("step"),
               Column::number("tokens", "", "{:.0f}"), Column::number("loss", "", "{:.4f}"),
               Column::number("validation loss", "", "{:.4f}"), Column::percent("goodput"),
               Column::number("attempts", "", "{:.0f}")},
              kMissing);
  std::string messages;
  for (const DocumentRun& run : runs) {
    const MarkdownJson& summary = json_at(run.view, "summary");
    const auto number = [&](const char* key) { return number_at(summary, key); };
    table.add({run.name, ending(summary), text_at(summary, "model"), number("ranks"),
               fmt::format("{} of {}", count_at(summary, "step"), count_at(summary, "total_steps")),
               number("tokens"), number("loss"), number("valid_loss"), number("goodput"),
               number("attempts")});
    if (const std::string message = text_at(summary, "message"); !message.empty())
      messages += fmt::format("- {}: {}\n", markdown_text(run.name), markdown_text(message));
  }
  return section("Summary", "", table, messages);
}

std::string differences_section(const DocumentRuns& runs, const MarkdownJson& differences) {
  if (runs.size() < 2) return "";
  if (!differences.is_array() || differences.empty())
    return "## Configuration\n\nThe configurations are equal.\n";
  std::vector<Column> columns = {Column::text("key")};
  for (const DocumentRun& run : runs) columns.push_back(Column::text(run.name));
  Table table(std::move(columns), kMissing);
  for (const MarkdownJson& one : differences) {
    std::vector<Cell> cells = {text_at(one, "key")};
    for (const MarkdownJson& value : json_at(one, "values"))
      cells.push_back(value.is_string() ? Cell(value) : Cell::missing());
    table.add(std::move(cells));
  }
  return section("Configuration: what differs", "", table);
}

std::string loss_section(const DocumentRuns& runs, const std::vector<std::int64_t>& table_steps) {
  std::vector<Column> columns = {Column::number("step")};
  for (const DocumentRun& run : runs)
    for (const std::string what : {"loss", "validation"})
      columns.push_back(
          Column::number(runs.size() == 1 ? what : run.name + " " + what, "", "{:.4f}"));
  Table table(std::move(columns), kMissing);
  const auto cell = [](float loss) {
    return std::isnan(loss)   ? Cell::missing()
           : std::isinf(loss) ? Cell("not finite")
                              : Cell(static_cast<double>(loss));
  };
  for (std::size_t i = 0; i < table_steps.size(); ++i) {
    std::vector<Cell> cells = {table_steps[i]};
    for (const DocumentRun& run : runs) {
      cells.push_back(cell(run.figures.losses.at(i).loss));
      cells.push_back(cell(run.figures.losses.at(i).valid));
    }
    table.add(std::move(cells));
  }
  return section("Loss",
                 "The loss of the step, and the last validation since the row above, in nats per "
                 "token.",
                 table);
}

std::string speed_section(const DocumentRuns& runs) {
  Table table({Column::text("run"), Column::number("steps"),
               Column::number("tokens/s p10", "", "{:.1f}"), Column::number("median", "", "{:.1f}"),
               Column::number("p90", "", "{:.1f}"), Column::percent("MFU, causal attention", "", 2),
               Column::percent("MFU, full attention", "", 2),
               Column::number("s/step", "", "{:.4g}"), Column::percent("data wait", "", 2)},
              kMissing);
  for (const auto& [name, view, f] : runs)
    if (f.rate)
      table.add({name, f.steps, f.rate_p10, f.rate, f.rate_p90, f.mfu, f.mfu_full_attention,
                 f.step_time_s, f.data_wait});
  return section("Speed",
                 "Medians over all steps; p10 and p90 are the 10th and 90th percentile. Data wait "
                 "is its part of the time of all steps.",
                 table);
}

Cell share_of(double part, double all) { return all > 0 ? Cell(part / all) : Cell::missing(); }

// Seconds by category, in the order of the run.
std::vector<std::pair<std::string, double>> goodput_of(const DocumentRun& run) {
  std::vector<std::pair<std::string, double>> categories;
  for (const MarkdownJson& one : json_at(json_at(run.view, "goodput"), "categories"))
    categories.emplace_back(text_at(one, "name"), number_at(one, "seconds").value_or(0));
  return categories;
}

std::string goodput_section(const DocumentRuns& runs) {
  std::vector<Column> columns = {Column::text("category")};
  std::vector<std::string> names;  // of categories, as the first run with any lists them
  std::vector<double> totals;
  for (const DocumentRun& run : runs) {
    totals.push_back(0);
    for (const auto& [name, seconds] : goodput_of(run)) {
      totals.back() += seconds;
      if (seconds > 0 && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
    }
    columns.push_back(Column::duration(run.name));
    columns.push_back(Column::percent("share"));
  }
  if (names.empty()) return "";
  Table table(std::move(columns), kMissing);
  const auto add = [&](const std::string& title, const std::vector<double>& seconds) {
    std::vector<Cell> cells = {title};
    for (std::size_t i = 0; i < runs.size(); ++i) {
      cells.push_back(seconds[i]);
      cells.push_back(share_of(seconds[i], totals[i]));
    }
    table.add(std::move(cells));
  };
  for (const std::string& name : names) {
    std::vector<double> seconds(runs.size(), 0);
    for (std::size_t i = 0; i < runs.size(); ++i)
      for (const auto& [category, spent] : goodput_of(runs[i]))
        if (category == name) seconds[i] = spent;
    add(name, seconds);
  }
  add("total", totals);
  return section("Goodput", "What the time of the run was used for, over all attempts.", table);
}

// "- runs/a: facility 2.4 MWh, CO2e 640 kg (location-based), for the nodes with PUE"
std::string footprint_line(const DocumentRun& run) {
  const MarkdownJson& energy = json_at(run.view, "energy");
  const MarkdownJson& carbon = json_at(energy, "co2e");
  std::string text;
  if (const auto joules = number_at(json_at(energy, "facility"), "joules"))
    text += ", facility " + energy_text(*joules);
  for (const auto& [key, name] :
       {std::pair{"location_based", "location-based"}, {"market_based", "market-based"}})
    if (const auto kg = number_at(json_at(carbon, key), "kg"))
      text += fmt::format(", CO2e {} ({})", mass_text(*kg), name);
  if (text.empty()) return "";
  return fmt::format("- {}: {}, for the {}\n", markdown_text(run.name), text.substr(2),
                     markdown_text(text_at(carbon, "of")));
}

void add_energy_levels(const DocumentRun& run, Table& table) {
  const MarkdownJson& levels = json_at(json_at(run.view, "energy"), "levels");
  if (!levels.is_object()) return;
  const bool metered = std::any_of(levels.begin(), levels.end(), [](const MarkdownJson& level) {
    return number_at(level, "joules").has_value();
  });
  const Cell none = Cell::missing();
  if (!metered)  // one line says it
    return table.add({run.name, none, "not measured", none, none, none, none,
                      text_at(json_at(levels, "node"), "reason")});
  for (const auto& [name, level] : levels.items()) {
    const auto joules = number_at(level, "joules");
    std::string source = text_at(level, "source");
    if (const std::string kind = text_at(level, "kind"); !kind.empty()) source += " " + kind;
    table.add({run.name, name, joules ? energy_text(*joules) : "not measured",
               number_at(level, "joules_per_token"), number_at(level, "mean_w_per_node"),
               Cell::or_missing(source),
               joules ? Cell(number_at(level, "time_measured").value_or(0)) : none,
               text_at(level, "reason")});
  }
}

std::string energy_section(const DocumentRuns& runs) {
  Column energy = Column::text("energy");
  energy.numbers = true;  // with different units
  Table table(
      {Column::text("run"), Column::text("level"), energy, Column::number("J/token", "", "{:.4g}"),
       Column::number("mean W per node", "", "{:.1f}"), Column::text("source"),
       Column::percent("time measured"), Column::text("note")},
      kMissing);
  std::string footprints;
  for (const DocumentRun& run : runs) {
    footprints += footprint_line(run);
    add_energy_levels(run, table);
  }
  return section("Energy",
                 "Levels are measured by different meters: a node contains the others, so they are "
                 "not added.",
                 table, footprints);
}

std::string experts_section(const DocumentRuns& runs) {
  Table table({Column::text("run"), Column::number("layer"), Column::number("step", "", "{:.0f}"),
               Column::number("busiest expert", "", "{:.2f}"),
               Column::number("entropy", "", "{:.3f}"), Column::number("idle", "", "{:.0f}"),
               Column::number("experts"), Column::number("busiest so far", "", "{:.2f}")},
              kMissing);
  for (const DocumentRun& run : runs) {
    const MarkdownJson& experts = json_at(run.view, "experts");
    for (const MarkdownJson& index : json_at(experts, "worst")) {
      const MarkdownJson& layer = experts["layers"][index.get<std::size_t>()];
      const auto newest = [&](const char* key) { return layer[key].back().get<double>(); };
      table.add({run.name, count_at(layer, "layer"), experts["steps"].back().get<double>(),
                 newest("max_load"), newest("entropy"), newest("idle"),
                 count_at(experts, "experts"),
                 std::ranges::max(layer["max_load"].get<std::vector<double>>())});
    }
  }
  return section("Experts",
                 "The least even layers in the newest count: the load of the busiest expert "
                 "relative to the mean, the entropy of the choices (1: even), and experts with "
                 "less than 1 % of the mean.",
                 table);
}

// Calls use(one) for the last `most` of a list, and notes how many are left out.
template <class Use>
void for_last(const MarkdownJson& list, std::size_t most, const std::string& run, const char* what,
              std::string& notes, const Use& use) {
  if (!list.is_array()) return;
  const std::size_t first = list.size() > most ? list.size() - most : 0;
  if (first > 0)
    notes += fmt::format("- {}: {} earlier {} are left out\n", markdown_text(run), first, what);
  for (std::size_t i = first; i < list.size(); ++i) use(list[i]);
}

std::string attempts_section(const DocumentRuns& runs) {
  Table table({Column::text("run"), Column::number("attempt"), Column::text("launched"),
               Column::duration("duration"), Column::text("steps"),
               Column::number("nodes", "", "{:.0f}"), Column::text("end")},
              kMissing);
  std::string notes;
  for (const DocumentRun& run : runs)
    for_last(json_at(json_at(run.view, "goodput"), "attempts"), kMostAttemptRows, run.name,
             "attempts", notes, [&](const MarkdownJson& one) {
               const double launched_s = number_at(one, "launched_s").value_or(0);
               table.add({run.name, count_at(one, "attempt"), iso_time(launched_s),
                          std::max(0.0, number_at(one, "last_s").value_or(0) - launched_s),
                          fmt::format("{} to {}", count_at(one, "first_step"),
                                      count_at(one, "last_step")),
                          number_at(one, "nodes"), ending(one)});
             });
  return section("Attempts", "", table, notes);
}

std::string events_section(const DocumentRuns& runs) {
  Table table({Column::text("run"), Column::text("time"), Column::text("event"),
               Column::number("step", "", "{:.0f}"), Column::text("message")},
              kMissing);
  std::string notes;
  for (const DocumentRun& run : runs)
    for_last(json_at(run.view, "events"), kMostEventRows, run.name, "events", notes,
             [&](const MarkdownJson& one) {
               const auto time_s = number_at(one, "time_s");
               table.add({run.name, time_s ? Cell(iso_time(*time_s)) : Cell::missing(),
                          text_at(one, "event"), number_at(one, "step"), text_at(one, "message")});
             });
  return section("Events", "", table, notes);
}

}  // namespace

StepFigures step_figures(const StepSeries& series, const std::vector<std::int64_t>& table_steps) {
  StepFigures figures{.steps = series.records(),
                      .mfu = median_of(series, "mfu"),
                      .mfu_full_attention = median_of(series, "mfu_full_attention"),
                      .step_time_s = median_of(series, "step_time_s")};
  std::int64_t above = 0;
  for (const std::int64_t step : table_steps) {
    figures.losses.push_back({loss_at(series, step), valid_between(series, above, step)});
    above = step;
  }
  if (const std::vector<double> rates = values_of(series, "tokens_per_s"); !rates.empty()) {
    figures.rate_p10 = quantile(rates, 0.1);
    figures.rate = median(rates);
    figures.rate_p90 = quantile(rates, 0.9);
  }
  const std::vector<double> waits = values_of(series, "data_wait_s");
  const double spent_s = sum_of(values_of(series, "step_time_s"));
  if (!waits.empty() && spent_s > 0) figures.data_wait = sum_of(waits) / spent_s;
  return figures;
}

std::vector<std::int64_t> loss_table_steps(const std::vector<std::int64_t>& last_steps) {
  constexpr std::int64_t kLargest = 1'000'000'000'000'000;
  std::vector<std::int64_t> steps;
  for (const std::int64_t last : last_steps)
    if (last > 0 && last <= kLargest) steps.push_back(last);
  if (steps.empty()) return steps;
  const std::int64_t highest = *std::max_element(steps.begin(), steps.end());
  for (std::int64_t decade = 1; decade < highest; decade *= 10)
    for (const std::int64_t factor : {1, 2, 5})
      if (factor * decade < highest) steps.push_back(factor * decade);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::string to_markdown(const MarkdownReport& report) {
  const DocumentRuns& runs = report.runs;
  std::string text = runs.size() == 1 ? fmt::format("# Report of {}\n", markdown_text(runs[0].name))
                                      : fmt::format("# Report of {} runs\n", runs.size());
  text += fmt::format("\nWritten {}.\n", markdown_text(report.written));
  for (const std::string& one :
       {summary_section(runs), differences_section(runs, report.differences),
        loss_section(runs, report.table_steps), speed_section(runs), goodput_section(runs),
        energy_section(runs), experts_section(runs), attempts_section(runs), events_section(runs)})
    if (!one.empty()) text += "\n" + one;
  return text;
}

}  // namespace kintsugi
