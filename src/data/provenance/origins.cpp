#include "data/provenance/origins.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/json_members.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string plain_string(const JsonMember& member) {
  if (member.kind != JsonMember::Kind::Text) return {};
  if (member.value.find('\\') == std::string_view::npos) return std::string(member.value);
  const auto value = nlohmann::json::parse("\"" + std::string(member.value) + "\"", nullptr, false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

void find_curations(const std::vector<fs::path>& files, std::set<fs::path>& seen,
                    std::vector<CurationRecord>& found) {
  for (const fs::path& file : files) {
    const auto stage = stage_that_wrote(file);
    if (!stage || !seen.insert(fs::absolute(stage->directory).lexically_normal()).second) continue;
    if (stage->kind == WritingStage::Kind::Dedup) {
      find_curations(read_dedup_settings(stage->directory).inputs, seen, found);
      continue;
    }
    auto record = read_curation_record(stage->directory / kCurationFile);
    if (!record) continue;
    std::vector<fs::path> inputs;
    for (const InputFile& input : record->provenance.inputs) inputs.emplace_back(input.path);
    found.push_back(std::move(*record));
    find_curations(inputs, seen, found);
  }
}

}  // namespace

std::optional<WritingStage> stage_that_wrote(const fs::path& file) {
  std::error_code ignored;
  const fs::path folder = fs::absolute(file).lexically_normal().parent_path();
  if (file.filename().string().starts_with("documents-") &&
      fs::is_regular_file(folder / kCurationFile, ignored))
    return WritingStage{WritingStage::Kind::Curation, folder};
  if (folder.filename() == "kept" &&
      fs::is_regular_file(folder.parent_path() / kDedupFile, ignored))
    return WritingStage{WritingStage::Kind::Dedup, folder.parent_path()};
  return std::nullopt;
}

DedupOptions read_dedup_settings(const fs::path& directory) {
  const fs::path path = directory / kDedupFile;
  try {
    const Json json = Json::parse(read_text_file(path));
    DedupOptions options;
    options.output = directory;
    const auto by = dedup_by_of(json.at("by").get<std::string>());
    options.by = by.value_or(DedupBy::Words);
    options.tasks = json.at("tasks").get<std::size_t>();
    options.text_key = json.at("text_key").get<std::string>();
    options.url_key = json.value("url_key", options.url_key);
    options.skip_invalid = json.at("skip_invalid").get<bool>();
    for (const Json& input : json.at("inputs"))
      options.inputs.emplace_back(input.at(0).get<std::string>());
    if (by && options.tasks > 0 && options.tasks < std::size_t{1} << 32 && !options.inputs.empty())
      return options;
  } catch (const nlohmann::json::exception&) {
  }
  user_error("{} is damaged: it does not describe a deduplication; copy it again", path.string());
}

std::vector<CurationRecord> curations_of(const std::vector<fs::path>& files) {
  std::set<fs::path> seen;
  std::vector<CurationRecord> found;
  find_curations(files, seen, found);
  return found;
}

DocumentLabels labels_of(std::string_view object, const std::string& url_key) {
  DocumentLabels labels;
  JsonMembers members(object);
  for (JsonMember member; members.next(member);) {
    if (member.key == url_key)
      labels.url = plain_string(member);
    else if (member.key == "origin")
      labels.origin = plain_string(member);
    else if (member.key == "language")
      labels.language = plain_string(member);
    else if (member.key == "date")
      labels.date = plain_string(member);
    else if (member.key == "license")
      labels.license = plain_string(member);
  }
  return labels;
}

OriginPlace parse_origin(const std::string& origin) {
  const std::size_t colon = origin.rfind(':');
  if (colon == std::string::npos || colon + 1 == origin.size() || origin.size() - colon > 19 ||
      origin.find_first_not_of("0123456789", colon + 1) != std::string::npos)
    return {.file = origin};
  return {.file = origin.substr(0, colon), .line = std::stoull(origin.substr(colon + 1))};
}

OriginCounter::OriginCounter(const std::vector<fs::path>& files, std::string url_key)
    : url_key_(std::move(url_key)) {
  for (const CurationRecord& record : curations_of(files))
    for (const InputFile& input : record.provenance.inputs)
      if (!input.source.empty()) source_of_file_.try_emplace(input.file, input.source);
}

void OriginCounter::count(std::string_view object, std::int64_t text_bytes, const std::string& rule,
                          std::int64_t kept_bytes) {
  const DocumentLabels labels = labels_of(object, url_key_);
  std::string name;
  if (!source_of_file_.empty() && !labels.origin.empty()) {
    const auto found = source_of_file_.find(parse_origin(labels.origin).file);
    if (found != source_of_file_.end()) name = found->second;
  }
  SourceCounts& source = sources_[name];
  source.read.add(text_bytes);
  if (!rule.empty()) return source.removed[rule][labels.language].add(text_bytes);
  source.kept.add(kept_bytes);
  if (const std::string domain = registered_domain(labels.url); !domain.empty())
    domains_[domain].add(kept_bytes);
}

}  // namespace kintsugi
