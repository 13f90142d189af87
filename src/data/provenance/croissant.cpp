// The JSON-LD of Croissant 1.1 (http://mlcommons.org/croissant/1.1).
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/json_members.h"
#include "data/corpora/record_reader.h"
#include "data/provenance/card.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kSampledDocuments = 100;  // for the members that records have

Json context() {
  Json context = {{"@language", "en"},
                  {"@vocab", "http://schema.org/"},
                  {"sc", "http://schema.org/"},
                  {"cr", "http://mlcommons.org/croissant/"},
                  {"rai", "http://mlcommons.org/croissant/RAI/"},
                  {"dct", "http://purl.org/dc/terms/"},
                  {"prov", "http://www.w3.org/ns/prov#"},
                  {"conformsTo", "dct:conformsTo"},
                  {"data", {{"@id", "cr:data"}, {"@type", "@json"}}},
                  {"dataType", {{"@id", "cr:dataType"}, {"@type", "@vocab"}}},
                  {"examples", {{"@id", "cr:examples"}, {"@type", "@json"}}}};
  for (const char* term : {"annotation",    "arrayShape",   "citeAs",
                           "column",        "containedIn",  "equivalentProperty",
                           "excludes",      "extract",      "field",
                           "fileObject",    "fileProperty", "fileSet",
                           "format",        "includes",     "isArray",
                           "isLiveDataset", "jsonPath",     "key",
                           "md5",           "parentField",  "readLines",
                           "recordSet",     "references",   "regex",
                           "sdVersion",     "separator",    "source",
                           "subField",      "transform",    "unArchive",
                           "value"})
    context[term] = std::string("cr:") + term;
  return context;
}

// Of the file itself; what is in it has a format too.
std::string format_of(const fs::path& file) {
  const std::string ending = file.extension().string();
  if (ending == ".zst") return "application/zstd";
  if (ending == ".gz") return "application/gzip";
  return ending == ".jsonl" ? "application/jsonlines" : "application/octet-stream";
}

bool has_documents(const DataStage& stage) { return stage.kind != DataStage::Kind::Store; }

// Addresses are different for different files, and so are their ids.
Json file_object(const DataCard& card, const StageOutput& output) {
  return {{"@type", "cr:FileObject"},
          {"@id", card.address_of(output.path)},
          {"name", output.path.filename().string()},
          {"contentUrl", card.address_of(output.path)},
          {"contentSize", fmt::format("{} B", output.bytes)},
          {"encodingFormat", format_of(output.path)},
          {"sha256", output.sha256}};
}

// The members of the first documents, with their types.
Json fields_of(const StageOutput& output, const std::string& set) {
  Json fields = Json::array();
  std::set<std::string> seen;
  RecordReader reader(output.path);
  Record record;
  for (std::size_t i = 0; i < kSampledDocuments && reader.next(record); ++i) {
    JsonMembers members(record.bytes);
    for (JsonMember member; members.next(member);) {
      const std::string name(member.key);
      if (member.kind == JsonMember::Kind::Null || name.find('\\') != std::string::npos ||
          !seen.insert(name).second)
        continue;
      const bool is_whole = member.value.find_first_of(".eE") == std::string_view::npos;
      const char* const type = member.kind == JsonMember::Kind::Number
                                   ? is_whole ? "sc:Integer" : "sc:Float"
                               : member.kind == JsonMember::Kind::Word ? "sc:Boolean"
                                                                       : "sc:Text";
      fields.push_back(
          {{"@type", "cr:Field"},
           {"@id", "documents/" + name},
           {"name", name},
           {"dataType", type},
           {"source", {{"fileSet", {{"@id", set}}}, {"extract", {{"column", name}}}}}});
    }
  }
  return fields;
}

struct Distribution {
  Json files = Json::array(), sets = Json::array(), fields = Json::array();
};

Distribution distribution_of(const DataCard& card) {
  Distribution distribution;
  for (const std::size_t number : card.history.last) {
    const DataStage& stage = card.history.stages[number];
    const std::string name = stage.directory.filename().string();
    Json ids = Json::array();
    for (const StageOutput& output : stage.outputs) {
      distribution.files.push_back(file_object(card, output));
      ids.push_back({{"@id", card.address_of(output.path)}});
    }
    if (!has_documents(stage) || stage.outputs.empty()) continue;
    const std::string set = card.address_of(stage.directory) + "/documents";
    const std::string file = stage.outputs.front().path.filename().string();
    distribution.sets.push_back({{"@type", "cr:FileSet"},
                                 {"@id", set},
                                 {"name", "documents of " + name},
                                 {"containedIn", ids},
                                 {"includes", "*" + file.substr(file.find('.'))},
                                 {"encodingFormat", "application/jsonlines"}});
    if (distribution.fields.empty()) distribution.fields = fields_of(stage.outputs.front(), set);
  }
  return distribution;
}

Json derived_from(const DataCard& card) {
  Json list = Json::array();
  for (const auto& [name, count] : card.sources()) {
    const DocumentSource* const source = card.source(name);
    const std::string shown = name.empty() ? "source " + std::string(kToAdd) : name;
    const auto of = [&](std::string DocumentSource::*member) {
      return or_to_add(source == nullptr ? "" : source->*member);
    };
    Json one = {{"@type", "prov:Entity"},
                {"prov:label", shown},
                {"license", of(&DocumentSource::license)},
                {"url", of(&DocumentSource::url)},
                {"version", of(&DocumentSource::version)}};
    if (source != nullptr && !source->creator.empty())
      one["prov:wasAttributedTo"] = {{"@type", "prov:Agent"}, {"prov:label", source->creator}};
    list.push_back(std::move(one));
  }
  return list;
}

Json generated_by(const DataCard& card) {
  Json list = Json::array();
  for (const DataStage& stage : card.history.stages) {
    Json one = {{"@type", "prov:Activity"},
                {"prov:label", fmt::format("{} {} ({})", to_string(stage.kind),
                                           stage.directory.filename().string(), stage.how)}};
    if (!stage.program.empty())
      one["prov:wasAssociatedWith"] = {{"@type", "prov:SoftwareAgent"},
                                       {"prov:label", "kintsugi " + stage.program}};
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace

Json croissant(const DataCard& card) {
  const CardDetails& details = card.details;
  Distribution distribution = distribution_of(card);
  for (Json& set : distribution.sets) distribution.files.push_back(std::move(set));
  Json json = {{"@context", context()},
               {"@type", "sc:Dataset"},
               {"dct:conformsTo", "http://mlcommons.org/croissant/1.1"},
               {"name", card.name()},
               {"description", or_to_add(details.description)},
               {"license", or_to_add(details.license)},
               {"url", or_to_add(details.url)},
               {"creator", {{"@type", "Organization"}, {"name", or_to_add(details.creator)}}},
               {"datePublished", or_to_add(details.date_published)}};
  if (!details.version.empty()) json["version"] = details.version;
  if (!details.citation.empty()) json["citeAs"] = details.citation;
  if (const auto languages = card.languages(); !languages.empty()) json["inLanguage"] = languages;
  json["distribution"] = std::move(distribution.files);
  if (!distribution.fields.empty())
    json["recordSet"] = Json::array({{{"@type", "cr:RecordSet"},
                                      {"@id", "documents"},
                                      {"name", "documents"},
                                      {"field", std::move(distribution.fields)}}});
  json["prov:wasDerivedFrom"] = derived_from(card);
  json["prov:wasGeneratedBy"] = generated_by(card);
  return json;
}

}  // namespace kintsugi
