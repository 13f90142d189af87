// The data card as a page and as Markdown.
#include <fmt/format.h>

#include <algorithm>

#include "core/build_info.h"
#include "core/hash.h"
#include "core/table.h"
#include "core/units.h"
#include "data/provenance/card.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostRows = 200;  // of a table; the CSV files have all

constexpr const char* kPage = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{0}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 0.5rem 0 1.5rem; }}
th, td {{ border: 1px solid #8886; padding: 0.2rem 0.6rem; text-align: left; vertical-align: top; }}
pre {{ background: #8882; padding: 0.8rem; overflow-x: auto; }}
</style></head><body>
)";

// Writes both forms at once.
class Writer {
 public:
  explicit Writer(const std::string& title) {
    page_.html = fmt::format(kPage, html_text(title));
    heading(1, title);
  }
  void heading(int level, const std::string& text) {
    page_.html += fmt::format("<h{0}>{1}</h{0}>\n", level, html_text(text));
    page_.markdown +=
        fmt::format("{}{} {}\n\n", page_.markdown.empty() ? "" : "\n",
                    std::string(static_cast<std::size_t>(level), '#'), markdown_text(text));
  }
  void paragraph(const std::string& text) {
    page_.html += fmt::format("<p>{}</p>\n", html_text(text));
    page_.markdown += markdown_text(text) + "\n\n";
  }
  void list(const std::vector<std::string>& items) {
    page_.html += "<ul>\n";
    for (const std::string& item : items) {
      page_.html += fmt::format("<li>{}</li>\n", html_text(item));
      page_.markdown += fmt::format("- {}\n", markdown_text(item));
    }
    page_.html += "</ul>\n";
  }
  void table(const Table& table) {
    if (table.empty()) return;
    page_.html += table.html();
    page_.markdown += table.markdown() + "\n";
  }
  // Text as it is. A line of it cannot end the block: each is indented.
  void text(const std::string& text) {
    page_.html += "<pre>";
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      page_.html += html_text(line) + "\n";
      page_.markdown += "    " + line + "\n";
      begin = end + 1;
    }
    page_.html += "</pre>\n";
    page_.markdown += "\n";
  }
  CardPage take() {
    page_.html += "</body></html>\n";
    return std::move(page_);
  }

 private:
  CardPage page_;
};

std::string size_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

Table facts_table(const DataCard& card) {
  Table table({Column::text("fact"), Column::text("value")});
  const CardDetails& details = card.details;
  const auto add = [&](const char* name, const std::string& value) {
    table.add({name, or_to_add(value)});
  };
  add("licence", details.license);
  add("address", details.url);
  add("creator", details.creator);
  add("published", details.date_published);
  add("version", details.version);
  const TextCount text = card.text();
  add("documents", std::to_string(text.documents));
  add("text",
      fmt::format("{} ({} bytes)", size_text(static_cast<std::uint64_t>(text.bytes)), text.bytes));
  if (const auto tokens = card.tokens()) add("tokens", std::to_string(*tokens));
  return table;
}

Table sources_table(const DataCard& card) {
  Table table({Column::text("source"), Column::text("kind"), Column::text("version"),
               Column::text("licence"), Column::text("collected"), Column::text("address"),
               Column::number("documents"), Column::bytes("text")});
  for (const auto& [name, count] : card.sources()) {
    const DocumentSource* const known = card.source(name);
    const DocumentSource source = known == nullptr ? DocumentSource() : *known;
    const bool is_known = source.kind != SourceKind::Unknown;
    table.add({or_to_add(name),
               or_to_add(is_known ? YamlScalar<SourceKind>::format(source.kind) : ""),
               or_to_add(source.version), or_to_add(source.license), or_to_add(source.date),
               or_to_add(source.url), count.documents,
               count.bytes > 0 ? Cell(count.bytes) : Cell::missing()});
  }
  return table;
}

Table stages_table(const DataCard& card) {
  Table table({Column::text("stage"), Column::text("name"), Column::text("how"),
               Column::text("program"), Column::number("inputs"), Column::number("documents in"),
               Column::bytes("text in"), Column::number("documents out"),
               Column::bytes("text out")});
  for (const DataStage& stage : card.history.stages)
    table.add({std::string(to_string(stage.kind)), stage.directory.filename().string(), stage.how,
               Cell::or_missing(stage.program), stage.inputs.size(), stage.in.documents,
               stage.in.bytes, stage.out.documents, stage.out.bytes});
  return table;
}

Table removed_table(const DataStage& stage) {
  Table table({Column::text("rule"), Column::text("language"), Column::text("source"),
               Column::number("documents"), Column::bytes("text")});
  for (const auto& [source, counts] : stage.counts)
    for (const auto& [rule, languages] : counts.removed)
      for (const auto& [language, count] : languages)
        table.add({rule, Cell::or_missing(language), Cell::or_missing(source), count.documents,
                   count.bytes});
  return table;
}

Table notes_table(const DataStage& stage) {
  Table table({Column::text("step"), Column::text("source"), Column::number("count")});
  for (const auto& [source, counts] : stage.counts)
    for (const auto& [note, count] : counts.notes)
      table.add({note, Cell::or_missing(source), count});
  return table;
}

void write_stage(const DataStage& stage, Writer& page) {
  page.heading(3, fmt::format("{} {}", to_string(stage.kind), stage.directory.filename().string()));
  if (!stage.provenance.recipe.empty()) {
    page.paragraph("recipe, SHA-256 " + sha256_hex(stage.provenance.recipe));
    page.text(stage.provenance.recipe);
  }
  if (stage.kind == DataStage::Kind::Curation) page.table(stage.report.table());
  const Table removed = removed_table(stage), notes = notes_table(stage);
  if (!removed.empty()) page.paragraph("Removed, by rule, language and source:");
  page.table(removed);
  if (!notes.empty()) page.paragraph("Counted by steps, such as masked spans:");
  page.table(notes);
}

Table domains_table(const DataCard& card) {
  Table table({Column::text("domain"), Column::number("documents"), Column::bytes("text")});
  for (const auto& [domain, count] : top_domains(card.domains(), card.details.small_enterprise))
    if (table.rows() < kMostRows) table.add({domain, count.documents, count.bytes});
  return table;
}

Table summary_table(const Json& rows, const std::string& section) {
  Table table({Column::text("asked"), Column::text("answer")});
  for (const Json& row : rows)
    if (row["section"] == section) table.add({row["question"], row["answer"]});
  return table;
}

void write_summary(const DataCard& card, Writer& page) {
  page.heading(2, "Summary of training content");
  page.paragraph(
      "The questions are those of the template for Art. 53(1)(d) of the EU's AI Act, as far as "
      "they are about data.");
  const Json rows = training_summary(card);
  std::string section;
  for (const Json& row : rows)
    if (row["section"] != section) {
      section = row["section"];
      page.heading(3, section);
      page.table(summary_table(rows, section));
    }
}

Table files_table(const DataCard& card) {
  Table table({Column::text("file"), Column::number("bytes"), Column::text("SHA-256")});
  for (const std::size_t stage : card.history.last)
    for (const StageOutput& output : card.history.stages[stage].outputs)
      if (table.rows() < kMostRows)
        table.add({card.address_of(output.path), output.bytes, output.sha256});
  return table;
}

Table originals_table(const DataCard& card) {
  Table table({Column::text("file"), Column::number("bytes"), Column::text("SHA-256"),
               Column::text("source")});
  for (const OriginalFile& file : card.history.originals)
    if (table.rows() < kMostRows)
      table.add({file.input.file, file.input.bytes, Cell::or_missing(file.input.sha256),
                 or_to_add(file.input.source)});
  return table;
}

std::vector<std::string> doubts(const DataCard& card) {
  std::vector<std::string> all;
  for (const OriginalFile& file : card.history.originals)
    if (!file.state.empty() && all.size() < kMostRows)
      all.push_back(file.input.path + ": " + file.state);
  for (const DataStage& stage : card.history.stages)
    for (const std::string& what : stage.unknown)
      all.push_back(fmt::format("{} does not say: {}", stage.directory.string(), what));
  return all;
}

}  // namespace

CardPage card_page(const DataCard& card) {
  Writer page(card.name());
  page.paragraph(card.details.description.empty() ? std::string("Description: ") + kToAdd
                                                  : card.details.description);
  page.table(facts_table(card));
  page.heading(2, "Sources");
  page.table(sources_table(card));
  if (const Table domains = domains_table(card); !domains.empty()) {
    page.heading(2, "Domains with most text");
    page.table(domains);
  }
  page.heading(2, "Stages");
  page.table(stages_table(card));
  for (const DataStage& stage : card.history.stages)
    if (stage.kind != DataStage::Kind::Store) write_stage(stage, page);
  write_summary(card, page);
  page.heading(2, "Files");
  page.table(files_table(card));
  page.heading(2, "Original files");
  page.paragraph(fmt::format("{} in inputs.csv; the first of them:",
                             format_number(std::ssize(card.history.originals), "file")));
  page.table(originals_table(card));
  if (const auto all = doubts(card); !all.empty()) {
    page.heading(2, "Missing, changed and unknown");
    page.list(all);
  }
  page.paragraph(fmt::format("Written by kintsugi {} ({}).", program_version(), program_commit()));
  return page.take();
}

}  // namespace kintsugi
