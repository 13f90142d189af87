#include "report/documents/markdown_sections.h"

#include <algorithm>
#include <cmath>

#include "core/units.h"
#include "energy/carbon.h"
#include "report/documents/cells.h"
#include "report/json_values.h"

namespace kintsugi {
namespace {

using SectionJson = nlohmann::ordered_json;

bool is_metered(const SectionJson& levels) {
  return std::any_of(levels.begin(), levels.end(), [](const SectionJson& level) {
    return number_at(level, "joules").has_value();
  });
}

std::string cell_of(float value) {
  return std::isnan(value) ? "–" : std::isinf(value) ? "not finite" : fmt::format("{:.4f}", value);
}

// "- runs/a: facility 2.4 MWh, CO2e 640 kg (location-based), for the nodes with PUE"
std::string footprint_line(const DocumentRun& run) {
  const SectionJson& energy = json_at(run.view, "energy");
  const SectionJson& carbon = json_at(energy, "co2e");
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

std::string share_of(double part, double all) {
  return all > 0 ? fmt::format("{:.1f} %", 100 * part / all) : "–";
}

}  // namespace

std::string loss_section(const std::vector<DocumentRun>& runs,
                         const std::vector<std::int64_t>& table_steps) {
  if (table_steps.empty()) return "";
  MarkdownTable table{.header = {"step"}, .numbers = {true}};
  for (const DocumentRun& run : runs)
    for (const std::string what : {"loss", "validation"}) {
      table.header.push_back(runs.size() == 1 ? what : markdown_text(run.name) + " " + what);
      table.numbers.push_back(true);
    }
  for (std::size_t i = 0; i < table_steps.size(); ++i) {
    table.rows.push_back({std::to_string(table_steps[i])});
    for (const DocumentRun& run : runs) {
      table.rows.back().push_back(cell_of(run.figures.losses.at(i).loss));
      table.rows.back().push_back(cell_of(run.figures.losses.at(i).valid));
    }
  }
  return "## Loss\n\nThe loss of the step, and the last validation since the row above, in nats "
         "per "
         "token.\n\n" +
         to_markdown(table);
}

std::string speed_section(const std::vector<DocumentRun>& runs) {
  MarkdownTable table{
      .header = {"run", "steps", "tokens/s p10", "median", "p90", "MFU, causal attention",
                 "MFU, full attention", "s/step", "data wait"},
      .numbers = {false, true, true, true, true, true, true, true, true}};
  const auto percent = [](const std::optional<double>& share) {
    return share ? fmt::format("{:.2f} %", 100 * *share) : "–";
  };
  for (const DocumentRun& run : runs) {
    const StepFigures& f = run.figures;
    if (!f.rate) continue;
    table.rows.push_back({markdown_text(run.name), std::to_string(f.steps),
                          markdown_number(f.rate_p10, "{:.1f}"), markdown_number(f.rate, "{:.1f}"),
                          markdown_number(f.rate_p90, "{:.1f}"), percent(f.mfu),
                          percent(f.mfu_full_attention), markdown_number(f.step_time_s, "{:.4g}"),
                          percent(f.data_wait)});
  }
  if (table.rows.empty()) return "";
  return "## Speed\n\nMedians over all steps; p10 and p90 are the 10th and 90th percentile. Data "
         "wait is its part of the time of all steps.\n\n" +
         to_markdown(table);
}

std::string goodput_section(const std::vector<DocumentRun>& runs) {
  MarkdownTable table{.header = {"category"}, .numbers = {false}};
  std::vector<std::string> names;  // of categories, as the first run with any lists them
  std::vector<double> totals;
  for (const DocumentRun& run : runs) {
    double total = 0;
    for (const SectionJson& one : json_at(json_at(run.view, "goodput"), "categories")) {
      const std::string name = text_at(one, "name");
      const double seconds = number_at(one, "seconds").value_or(0);
      total += seconds;
      if (seconds > 0 && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
    }
    totals.push_back(total);
    table.header.push_back(markdown_text(run.name));
    table.header.push_back("share");
    table.numbers.insert(table.numbers.end(), 2, true);
  }
  if (names.empty()) return "";
  for (const std::string& name : names) {
    table.rows.push_back({markdown_text(name)});
    for (std::size_t i = 0; i < runs.size(); ++i) {
      double seconds = 0;
      for (const SectionJson& one : json_at(json_at(runs[i].view, "goodput"), "categories"))
        if (text_at(one, "name") == name) seconds = number_at(one, "seconds").value_or(0);
      table.rows.back().push_back(format_duration(seconds));
      table.rows.back().push_back(share_of(seconds, totals[i]));
    }
  }
  table.rows.push_back({"total"});
  for (const double total : totals) {
    table.rows.back().push_back(format_duration(total));
    table.rows.back().push_back(share_of(total, total));
  }
  return "## Goodput\n\nWhat the time of the run was used for, over all attempts.\n\n" +
         to_markdown(table);
}

std::string energy_section(const std::vector<DocumentRun>& runs) {
  MarkdownTable table{.header = {"run", "level", "energy", "J/token", "mean W per node", "source",
                                 "time measured", "note"},
                      .numbers = {false, false, true, true, true, false, true, false}};
  std::string footprints;
  for (const DocumentRun& run : runs) {
    footprints += footprint_line(run);
    const SectionJson& levels = json_at(json_at(run.view, "energy"), "levels");
    if (!levels.is_object()) continue;
    if (!is_metered(levels)) {  // one line says it
      table.rows.push_back({markdown_text(run.name), "–", "not measured", "–", "–", "–", "–",
                            markdown_text(text_at(json_at(levels, "node"), "reason"))});
      continue;
    }
    for (const auto& [name, level] : levels.items()) {
      const auto joules = number_at(level, "joules");
      std::string source = text_at(level, "source");
      if (const std::string kind = text_at(level, "kind"); !kind.empty()) source += " " + kind;
      table.rows.push_back(
          {markdown_text(run.name), markdown_text(name),
           joules ? energy_text(*joules) : "not measured",
           markdown_number(number_at(level, "joules_per_token"), "{:.4g}"),
           markdown_number(number_at(level, "mean_w_per_node"), "{:.1f}"),
           source.empty() ? "–" : markdown_text(source),
           joules ? share_of(number_at(level, "time_measured").value_or(0), 1) : "–",
           markdown_text(text_at(level, "reason"))});
    }
  }
  if (table.rows.empty()) return "";
  return "## Energy\n\nLevels are measured by different meters: a node contains the others, so "
         "they "
         "are not added.\n\n" +
         to_markdown(table) + (footprints.empty() ? "" : "\n" + footprints);
}

}  // namespace kintsugi
