#include "data/curation/curation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/output_file.h"
#include "data/corpora/corpus_journal.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

void add_to(TextCount& sum, const TextCount& more) {
  sum.documents += more.documents;
  sum.bytes += more.bytes;
}

Json json_of(const StepReport& step) {
  Json removed = Json::object();
  for (const auto& [rule, languages] : step.removed)
    for (const auto& [language, count] : languages) removed[rule][language] = json_of(count);
  Json notes = Json::object();
  for (const auto& [name, count] : step.notes) notes[name] = count;
  Json facts = Json::object(), leaks = Json::array();  // there may be thousands of leaks
  for (const auto& [name, count] : step.facts) facts[name] = count;
  for (const auto& [sample, leak] : step.leaks)
    leaks.push_back({{"sample", sample},
                     {"documents", leak.documents},
                     {"share", leak.share},
                     {"hash", leak.hash}});
  Json json = {{"step", step.name},  {"in", json_of(step.in)}, {"out", json_of(step.out)},
               {"removed", removed}, {"notes", notes},         {"facts", facts},
               {"leaks", leaks}};
  for (const auto& [name, task] : step.tasks)
    json["tasks"][name] = {{"samples", task.all},
                           {"too_short", task.too_short},
                           {"common", task.common},
                           {"hash", task.hash}};
  return json;
}
StepReport step_of(const Json& json) {
  StepReport step{.name = json.at("step").get<std::string>(),
                  .in = text_count_of(json.at("in")),
                  .out = text_count_of(json.at("out"))};
  for (const auto& [rule, languages] : json.at("removed").items())
    for (const auto& [language, count] : languages.items())
      step.removed[rule][language] = text_count_of(count);
  for (const auto& [name, count] : json.at("notes").items())
    step.notes[name] = count.get<std::int64_t>();
  for (const auto& [name, count] : json.at("facts").items())
    step.facts[name] = count.get<std::int64_t>();
  for (const Json& leak : json.at("leaks"))
    step.leaks[leak.at("sample").get<std::string>()] = {leak.at("documents").get<std::int64_t>(),
                                                        leak.at("share").get<double>(),
                                                        leak.value("hash", "")};
  if (!json.contains("tasks")) return step;  // another step
  for (const auto& [name, task] : json.at("tasks").items())
    step.tasks[name] = {.all = task.at("samples").get<std::int64_t>(),
                        .too_short = task.at("too_short").get<std::int64_t>(),
                        .common = task.at("common").get<std::int64_t>(),
                        .hash = task.at("hash").get<std::string>()};
  return step;
}

Json json_of(const CurationReport& report) {
  Json steps = Json::array(), inputs = Json::array();
  for (const StepReport& step : report.steps) steps.push_back(json_of(step));
  for (const auto& [file, counts] : report.inputs)
    inputs.push_back(
        {{"file", file}, {"read", json_of(counts.first)}, {"kept", json_of(counts.second)}});
  return {{"steps", steps},
          {"inputs", inputs},
          {"sources", json_of(report.sources)},
          {"invalid_records", report.invalid_records},
          {"first_invalid", report.first_invalid},
          {"lengths", json_of(report.lengths)},
          {"examples", report.examples.json()}};
}

CurationReport curation_report_of(const Json& json) {
  CurationReport report;
  for (const Json& step : json.at("steps")) report.steps.push_back(step_of(step));
  for (const Json& input : json.at("inputs"))
    report.inputs[input.at("file").get<std::string>()] = {text_count_of(input.at("read")),
                                                          text_count_of(input.at("kept"))};
  if (json.contains("sources")) report.sources = counts_by_source_of(json["sources"]);
  report.invalid_records = json.at("invalid_records").get<std::int64_t>();
  report.first_invalid = json.at("first_invalid").get<std::string>();
  report.lengths = lengths_of(json.at("lengths"));
  report.examples = CurationExamples::of_json(json.at("examples"));
  return report;
}

Json json_of(const CuratedShard& shard) {
  return {{"file", shard.file},
          {"documents", shard.text.documents},
          {"text_bytes", shard.text.bytes},
          {"bytes", shard.bytes},
          {"hash", shard.hash}};
}
CuratedShard shard_of(const Json& json) {
  const auto file = json.at("file").get<std::string>();
  if (!file.starts_with("documents-") || file.find('/') != std::string::npos)
    user_error("{} is no name of a file of documents", file);
  return {
      .file = file,
      .text = {json.at("documents").get<std::int64_t>(), json.at("text_bytes").get<std::int64_t>()},
      .bytes = json.at("bytes").get<std::uint64_t>(),
      .hash = json.at("hash").get<std::string>()};
}

Json json_of(const ShardOrigins& origins) {
  return {{"inputs", json_of(origins.inputs)}, {"domains", json_of(origins.domains)}};
}
ShardOrigins shard_origins_of(const Json& json) {
  return {.inputs = counts_by_name_of(json.at("inputs")),
          .domains = counts_by_name_of(json.at("domains"))};
}

Json json_of(const CurationProvenance& provenance) {
  Json sources = Json::array();
  for (const DocumentSource& source : provenance.sources) sources.push_back(json_of(source));
  return {{"recipe", {{"sha256", sha256_hex(provenance.recipe)}, {"text", provenance.recipe}}},
          {"sources", sources},
          {"inputs", json_of(provenance.inputs)}};
}
CurationProvenance provenance_of(const Json& json) {
  CurationProvenance provenance;
  provenance.recipe = json.at("recipe").at("text").get<std::string>();
  for (const Json& source : json.at("sources")) provenance.sources.push_back(source_of(source));
  provenance.inputs = input_files_of(json.at("inputs"));
  return provenance;
}

Json json_of(const CurationRecord& record) {
  Json shards = Json::array();
  for (const CuratedShard& shard : record.shards) shards.push_back(json_of(shard));
  const std::string program = fmt::format("{} ({})", program_version(), program_commit());
  Json json = {{"kintsugi_curation", kVersion},
               {"program", record.program.empty() ? program : record.program},
               {"all_written", record.all_written},
               {"place", json_of(record.position)},
               {"documents", shards},
               {"report", json_of(record.report)},
               {"skipped", json_of(record.skipped)},
               {"provenance", json_of(record.provenance)},
               {"made_from", Json::parse(record.made_from)}};
  if (!record.all_written) json["open_shard"] = json_of(record.open_shard);
  return json;
}

}  // namespace

void CurationReport::add(CurationReport other, std::size_t most_examples) {
  steps.resize(std::max(steps.size(), other.steps.size()));
  for (std::size_t i = 0; i < other.steps.size(); ++i) {
    const StepReport& more = other.steps[i];
    steps[i].name = more.name;
    add_to(steps[i].in, more.in);
    add_to(steps[i].out, more.out);
    for (const auto& [rule, languages] : more.removed)
      for (const auto& [language, count] : languages)
        add_to(steps[i].removed[rule][language], count);
    for (const auto& [name, count] : more.notes) steps[i].notes[name] += count;
    for (const auto& [sample, leak] : more.leaks) {
      StepReport::Leak& sum = steps[i].leaks[sample];
      sum.documents += leak.documents;
      sum.share = std::max(sum.share, leak.share);
      sum.hash = leak.hash;
    }
    steps[i].tasks.insert(more.tasks.begin(), more.tasks.end());
  }
  for (const auto& [file, counts] : other.inputs) {
    add_to(inputs[file].first, counts.first);
    add_to(inputs[file].second, counts.second);
  }
  for (const auto& [language, more] : other.lengths) lengths[language].add(more);
  add_counts(sources, other.sources);
  examples.add(std::move(other.examples), most_examples);
  if (invalid_records == 0) first_invalid = other.first_invalid;
  invalid_records += other.invalid_records;
}

TextCount CurationReport::read() const {
  TextCount sum;
  for (const auto& [file, counts] : inputs) add_to(sum, counts.first);
  return sum;
}

TextCount CurationReport::kept() const {
  TextCount sum;
  for (const auto& [file, counts] : inputs) add_to(sum, counts.second);
  return sum;
}

Table CurationReport::table() const {
  Table table({Column::text("step", "step"), Column::text("rule", "rule"),
               Column::number("documents", "documents"), Column::percent("of its input", "share"),
               Column::bytes("text", "bytes")});
  for (const StepReport& step : steps) {
    const auto row = [&](const std::string& rule, const TextCount& count) {
      const auto all = static_cast<double>(std::max<std::int64_t>(step.in.documents, 1));
      table.add({step.name, rule, count.documents, static_cast<double>(count.documents) / all,
                 count.bytes});
    };
    row("read", step.in);
    for (const auto& [rule, languages] : step.removed) {
      TextCount sum;
      for (const auto& [language, count] : languages) add_to(sum, count);
      const bool is_own = rule.starts_with(step.name + ".");
      row("removed: " + (is_own ? rule.substr(step.name.size() + 1) : rule), sum);
      for (const auto& [language, count] : languages)
        if (!language.empty()) row("  in " + language, count);
    }
    const auto count_row = [&](const std::string& name, std::int64_t count) {
      table.add({step.name, name, count, Cell::missing(), Cell::missing()});
    };
    for (const auto& [name, count] : step.notes) count_row(name, count);
    for (const auto& [name, count] : step.facts) count_row(name, count);
    for (const double share : {0.0, 0.5, 0.8, 1.0}) {
      const auto found = std::count_if(step.leaks.begin(), step.leaks.end(), [&](const auto& leak) {
        return leak.second.share >= share;
      });
      if (!step.leaks.empty())
        count_row(
            share == 0 ? "samples found" : fmt::format("samples found to {:.0f} %", 100 * share),
            found);
    }
    row("passed on", step.out);
  }
  return table;
}

std::optional<CurationRecord> curation_record_of(const Json& json) {
  try {
    if (json.at("kintsugi_curation").get<int>() != kVersion) return {};
    CurationRecord record;
    record.made_from = json.at("made_from").dump();
    record.position = input_offset_of(json.at("place"));
    record.report = curation_report_of(json.at("report"));
    record.skipped = skipped_inputs_of(json.at("skipped"));
    for (const Json& shard : json.at("documents")) record.shards.push_back(shard_of(shard));
    record.all_written = json.at("all_written").get<bool>();
    record.program = json.value("program", "");
    // Older programs did not write these.
    if (json.contains("provenance")) record.provenance = provenance_of(json["provenance"]);
    if (json.contains("open_shard")) record.open_shard = shard_origins_of(json["open_shard"]);
    return record;
  } catch (const nlohmann::json::exception&) {
  } catch (const UserError&) {
  }
  return {};
}

std::optional<CurationRecord> read_curation_record(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return {};
  const Json json = Json::parse(read_text_file(path), nullptr, false);
  if (auto record = curation_record_of(json)) return record;
  user_error(
      "{} is not a file of a curation that this version can read: curate again with "
      "--overwrite",
      path.string());
}

bool is_same(const CurationProvenance& a, const CurationProvenance& b) {
  return json_of(a) == json_of(b);
}

std::string origins_file(const std::string& documents) {
  const std::size_t number = documents.find('-'), end = documents.find('.');
  return "origins" + documents.substr(number, end - number) + ".json";
}

void write_shard_origins(const std::filesystem::path& path, const ShardOrigins& origins) {
  Json json = {{"kintsugi_origins", kVersion}};
  json.update(json_of(origins));
  write_file_atomically(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

ShardOrigins read_shard_origins(const std::filesystem::path& documents) {
  const auto path = documents.parent_path() / origins_file(documents.filename().string());
  try {
    const Json json = Json::parse(read_text_file(path));
    if (json.at("kintsugi_origins").get<int>() == kVersion) return shard_origins_of(json);
  } catch (const nlohmann::json::exception&) {
  }
  user_error("{} is damaged: it does not say where {} comes from; copy it again", path.string(),
             documents.string());
}

void write_curation_record(const std::filesystem::path& path, const CurationRecord& record) {
  // Several processes may write the same record at once.
  NewFile file(path, {.own_temporary = true});
  const std::string text =
      json_of(record).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  file.write(text.data(), text.size());
  file.publish();
}

}  // namespace kintsugi
