#include "report/documents/markdown.h"

#include <algorithm>

#include "core/units.h"
#include "report/documents/cells.h"
#include "report/documents/markdown_sections.h"
#include "report/json_values.h"

namespace kintsugi {
namespace {

using MarkdownJson = nlohmann::ordered_json;

constexpr std::size_t kMostAttemptRows = 50, kMostEventRows = 50;  // of one run

std::string state_cell(const MarkdownJson& summary) {
  std::string state = text_at(summary, "state"), reason = text_at(summary, "reason");
  if (!reason.empty() && reason != state) state += fmt::format(" ({})", reason);
  return markdown_text(state);
}

std::string step_cell(const MarkdownJson& summary) {
  return fmt::format("{} of {}", count_at(summary, "step"), count_at(summary, "total_steps"));
}

std::string percent_cell(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "–";
}

std::string summary_section(const std::vector<DocumentRun>& runs) {
  MarkdownTable table{.header = {"run", "state", "model", "ranks", "step", "tokens", "loss",
                                 "validation loss", "goodput", "attempts"},
                      .numbers = {false, false, false, true, true, true, true, true, true, true}};
  std::string messages;
  for (const DocumentRun& run : runs) {
    const MarkdownJson& summary = json_at(run.view, "summary");
    table.rows.push_back(
        {markdown_text(run.name), state_cell(summary), markdown_text(text_at(summary, "model")),
         markdown_number(number_at(summary, "ranks"), "{:.0f}"), step_cell(summary),
         markdown_number(number_at(summary, "tokens"), "{:.0f}"),
         markdown_number(number_at(summary, "loss"), "{:.4f}"),
         markdown_number(number_at(summary, "valid_loss"), "{:.4f}"),
         percent_cell(number_at(summary, "goodput")),
         markdown_number(number_at(summary, "attempts"), "{:.0f}")});
    if (const std::string message = text_at(summary, "message"); !message.empty())
      messages += fmt::format("- {}: {}\n", markdown_text(run.name), markdown_text(message));
  }
  return "## Summary\n\n" + to_markdown(table) + (messages.empty() ? "" : "\n" + messages);
}

std::string differences_section(const std::vector<DocumentRun>& runs,
                                const MarkdownJson& differences) {
  if (runs.size() < 2) return "";
  if (!differences.is_array() || differences.empty())
    return "## Configuration\n\nThe configurations are equal.\n";
  MarkdownTable table{.header = {"key"}};
  for (const DocumentRun& run : runs) table.header.push_back(markdown_text(run.name));
  for (const MarkdownJson& one : differences) {
    table.rows.push_back({markdown_text(text_at(one, "key"))});
    for (const MarkdownJson& value : json_at(one, "values"))
      table.rows.back().push_back(value.is_string() ? markdown_text(value.get<std::string>())
                                                    : "–");
  }
  return "## Configuration: what differs\n\n" + to_markdown(table);
}

// The last `most` of a list, and a line that says how many are left out.
struct LastOnes {
  std::size_t first = 0;
  LastOnes(const MarkdownJson& list, std::size_t most)
      : first(list.is_array() && list.size() > most ? list.size() - most : 0) {}
  void note(const DocumentRun& run, const char* what, std::string& text) const {
    if (first > 0)
      text +=
          fmt::format("- {}: {} earlier {} are left out\n", markdown_text(run.name), first, what);
  }
};

std::string ending_cell(const MarkdownJson& attempt) {
  std::string text = text_at(attempt, "state"), reason = text_at(attempt, "reason");
  if (reason == text) reason.clear();
  if (const auto code = number_at(attempt, "exit_code"))
    reason += fmt::format("{}exit code {:.0f}", reason.empty() ? "" : ", ", *code);
  return markdown_text(reason.empty() ? text : fmt::format("{} ({})", text, reason));
}

std::string attempts_section(const std::vector<DocumentRun>& runs) {
  MarkdownTable table{.header = {"run", "attempt", "launched", "duration", "steps", "nodes", "end"},
                      .numbers = {false, true, false, true, false, true, false}};
  std::string notes;
  for (const DocumentRun& run : runs) {
    const MarkdownJson& attempts = json_at(json_at(run.view, "goodput"), "attempts");
    const LastOnes last(attempts, kMostAttemptRows);
    last.note(run, "attempts", notes);
    for (std::size_t i = last.first; attempts.is_array() && i < attempts.size(); ++i) {
      const MarkdownJson& one = attempts[i];
      const double launched_s = number_at(one, "launched_s").value_or(0);
      table.rows.push_back(
          {markdown_text(run.name), std::to_string(count_at(one, "attempt")), iso_time(launched_s),
           format_duration(std::max(0.0, number_at(one, "last_s").value_or(0) - launched_s)),
           fmt::format("{} to {}", count_at(one, "first_step"), count_at(one, "last_step")),
           markdown_number(number_at(one, "nodes"), "{:.0f}"), ending_cell(one)});
    }
  }
  if (table.rows.empty()) return "";
  return "## Attempts\n\n" + to_markdown(table) + (notes.empty() ? "" : "\n" + notes);
}

std::string events_section(const std::vector<DocumentRun>& runs) {
  MarkdownTable table{.header = {"run", "time", "event", "step", "message"},
                      .numbers = {false, false, false, true, false}};
  std::string notes;
  for (const DocumentRun& run : runs) {
    const MarkdownJson& events = json_at(run.view, "events");
    const LastOnes last(events, kMostEventRows);
    last.note(run, "events", notes);
    for (std::size_t i = last.first; events.is_array() && i < events.size(); ++i) {
      const auto time_s = number_at(events[i], "time_s");
      table.rows.push_back({markdown_text(run.name), time_s ? iso_time(*time_s) : "–",
                            markdown_text(text_at(events[i], "event")),
                            markdown_number(number_at(events[i], "step"), "{:.0f}"),
                            markdown_text(text_at(events[i], "message"))});
    }
  }
  if (table.rows.empty()) return "";
  return "## Events\n\n" + to_markdown(table) + (notes.empty() ? "" : "\n" + notes);
}

}  // namespace

std::string to_markdown(const MarkdownReport& report) {
  const std::vector<DocumentRun>& runs = report.runs;
  std::string text = runs.size() == 1 ? fmt::format("# Report of {}\n", markdown_text(runs[0].name))
                                      : fmt::format("# Report of {} runs\n", runs.size());
  text += fmt::format("\nWritten {}.\n", markdown_text(report.written));
  for (const std::string& section :
       {summary_section(runs), differences_section(runs, report.differences),
        loss_section(runs, report.table_steps), speed_section(runs), goodput_section(runs),
        energy_section(runs), attempts_section(runs), events_section(runs)})
    if (!section.empty()) text += "\n" + section;
  return text;
}

}  // namespace kintsugi
