// The curation.json of `data curate`, or its journal while it runs.
#include <algorithm>
#include <array>

#include "core/error.h"
#include "data/curation/curation_report.h"
#include "data/curation/recipe.h"
#include "data/explore/explored_files.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A list of JSON takes up to twenty times its text in memory.
constexpr std::size_t kMostCurationBytes = std::size_t{64} << 20;
constexpr std::size_t kMostInputs = 500, kMostLanguages = 200, kMostLeaks = 200;
constexpr const char* kCuration = "curation.json";
constexpr const char* kUnfinished = "curation.progress.json";

struct ReadCuration {
  CurationRecord record;
  std::string program;
};

ReadCuration read_curation(const fs::path& file) {
  const Json json = read_explored_json(file, kMostCurationBytes);
  auto record = curation_record_of(json);
  if (!record)
    user_error("{} was not written by this version of kintsugi data curate, or is damaged",
               file.string());
  const auto program = json.find("program");
  return {std::move(*record),
          program != json.end() && program->is_string() ? program->get<std::string>() : ""};
}

// The recipe is a text in a text of JSON, because its keys have an order.
std::string recipe_of(const CurationRecord& record) {
  const Json made_from = Json::parse(record.made_from, nullptr, false);
  if (!made_from.is_object() || !made_from.contains("recipe")) return {};
  return made_from["recipe"].is_string() ? made_from["recipe"].get<std::string>() : "";
}

Json rules_of(const StepReport& step) {
  Json rules = Json::array();
  for (const auto& [rule, languages] : step.removed) {
    TextCount sum;
    Json by_language = Json::array();
    std::vector<std::pair<std::string, TextCount>> most(languages.begin(), languages.end());
    std::stable_sort(most.begin(), most.end(), [](const auto& a, const auto& b) {
      return a.second.documents > b.second.documents;
    });
    for (std::size_t i = 0; i < most.size(); ++i) {
      const auto& [language, count] = most[i];
      sum.documents += count.documents, sum.bytes += count.bytes;
      if (i < kMostLanguages)
        by_language.push_back(
            {{"language", language}, {"documents", count.documents}, {"bytes", count.bytes}});
    }
    rules.push_back({{"rule", rule},
                     {"documents", sum.documents},
                     {"bytes", sum.bytes},
                     {"languages", by_language}});
  }
  return rules;
}

// The questions of evaluation tasks that were found most completely.
Json leaks_of(const StepReport& step) {
  using Leak = std::pair<std::string, StepReport::Leak>;
  std::vector<Leak> leaks(step.leaks.begin(), step.leaks.end());
  std::stable_sort(leaks.begin(), leaks.end(),
                   [](const Leak& a, const Leak& b) { return a.second.share > b.second.share; });
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(leaks.size(), kMostLeaks); ++i)
    list.push_back({{"sample", leaks[i].first},
                    {"documents", leaks[i].second.documents},
                    {"share", leaks[i].second.share}});
  return {{"samples", leaks.size()}, {"most", list}};
}

Json steps_of(const CurationReport& report) {
  Json steps = Json::array();
  for (const StepReport& step : report.steps) {
    Json notes = Json::array();
    for (const auto& [name, count] : step.notes)
      notes.push_back({{"name", name}, {"count", count}});
    steps.push_back({{"step", step.name},
                     {"in", json_of(step.in)},
                     {"out", json_of(step.out)},
                     {"rules", rules_of(step)},
                     {"notes", notes},
                     {"leaks", leaks_of(step)}});
  }
  return steps;
}

std::int64_t documents_in(const LogHistogram& histogram) {
  std::int64_t sum = 0;
  for (const std::int64_t count : histogram.counts()) sum += count;
  return sum;
}

// Languages with most documents first; those beyond a bound are added up as one.
Json languages_of(const LengthsByLanguage& lengths) {
  using Language = std::pair<std::string, LengthChange>;
  std::vector<Language> most(lengths.begin(), lengths.end());
  std::stable_sort(most.begin(), most.end(), [](const Language& a, const Language& b) {
    return documents_in(a.second.bytes_before) > documents_in(b.second.bytes_before);
  });
  for (std::size_t i = kMostLanguages; i < most.size(); ++i)
    most[kMostLanguages - 1].second.add(most[i].second);
  if (most.size() > kMostLanguages) most[kMostLanguages - 1].first = "all others";
  most.resize(std::min(most.size(), kMostLanguages));
  Json list = Json::array();
  for (const auto& [language, one] : most)
    list.push_back({{"language", language},
                    {"documents_before", documents_in(one.bytes_before)},
                    {"documents_after", documents_in(one.bytes_after)},
                    {"bytes_before", one.bytes_before.json()},
                    {"bytes_after", one.bytes_after.json()},
                    {"words_before", one.words_before.json()},
                    {"words_after", one.words_after.json()}});
  return list;
}

Json inputs_of(const CurationReport& report) {
  using Input = std::pair<std::string, std::pair<TextCount, TextCount>>;
  std::vector<Input> most(report.inputs.begin(), report.inputs.end());
  std::stable_sort(most.begin(), most.end(), [](const Input& a, const Input& b) {
    return a.second.first.bytes > b.second.first.bytes;
  });
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(most.size(), kMostInputs); ++i)
    list.push_back({{"file", most[i].first},
                    {"read", json_of(most[i].second.first)},
                    {"kept", json_of(most[i].second.second)}});
  return {{"files", most.size()}, {"most", list}};
}

Json edges() {
  Json list = Json::array();
  for (std::size_t bin = 0; bin < LogHistogram::kBins; ++bin)
    list.push_back(LogHistogram::edge(bin));
  return list;
}

}  // namespace

fs::path curation_file(const fs::path& directory) {
  std::error_code error;
  for (const char* name : {kCuration, kUnfinished})
    if (fs::exists(directory / name, error)) return directory / name;
  return {};
}

Json curation_overview(const fs::path& file) {
  const auto [record, program] = read_curation(file);
  const CurationReport& report = record.report;
  Json skipped = Json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(record.skipped.size(), 20); ++i)
    skipped.push_back(to_string(record.skipped[i]));
  return {{"kind", "curation"},
          {"is_complete", file.filename() == kCuration},
          {"program", program},
          {"read", json_of(report.read())},
          {"kept", json_of(report.kept())},
          {"files", record.shards.size()},
          {"invalid_records", report.invalid_records},
          {"first_invalid", report.first_invalid},
          {"skipped", {{"parts", record.skipped.size()}, {"first", skipped}}},
          {"edges", edges()},
          {"steps", steps_of(report)},
          {"languages", languages_of(report.lengths)},
          {"inputs", inputs_of(report)},
          {"examples", report.examples.json()},
          {"recipe", recipe_of(record)}};
}

ExploredDocuments curated_documents(const fs::path& file) {
  const CurationRecord record = read_curation(file).record;
  ExploredDocuments documents;
  if (file.filename() != kCuration) return documents;  // they do not have their names yet
  for (const CuratedShard& shard : record.shards)
    documents.files.push_back(file.parent_path() / shard.file);
  try {
    documents.text_key = read_recipe(recipe_of(record), "the recipe").text_key;
  } catch (const UserError&) {  // of another version
  }
  return documents;
}

}  // namespace kintsugi
