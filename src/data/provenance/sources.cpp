#include "data/provenance/sources.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "core/error.h"
#include "data/corpora/input_files.h"
#include "data/curation/steps.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// 2026, 2026-05 or 2026-05-01
bool is_date(std::string_view text) {
  const auto number = [&](std::size_t at, std::size_t digits, int low, int high) {
    int value = 0;
    for (std::size_t i = at; i < at + digits; ++i) {
      if (text[i] < '0' || text[i] > '9') return false;
      value = 10 * value + (text[i] - '0');
    }
    return value >= low && value <= high;
  };
  if (text.size() != 4 && text.size() != 7 && text.size() != 10) return false;
  if (!number(0, 4, 1, 9999)) return false;
  if (text.size() > 4 && (text[4] != '-' || !number(5, 2, 1, 12))) return false;
  return text.size() < 10 || (text[7] == '-' && number(8, 2, 1, 31));
}

bool is_date_or_interval(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return is_date(text);
  return is_date(text.substr(0, slash)) && is_date(text.substr(slash + 1));
}

// The visitor that writes a described struct as JSON.
struct SourceWriter {
  Json json = Json::object();
  void operator()(const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  }
  void operator()(const char* key, const std::vector<std::string>& values) {
    if (!values.empty()) json[key] = values;
  }
  void operator()(const char* key, SourceKind kind) {
    json[key] = YamlScalar<SourceKind>::format(kind);
  }
};
struct SourceReader {
  const Json& json;
  void operator()(const char* key, std::string& value) { value = json.value(key, ""); }
  void operator()(const char* key, std::vector<std::string>& values) {
    values = json.value(key, std::vector<std::string>());
  }
  void operator()(const char* key, SourceKind& kind) {
    kind = YamlScalar<SourceKind>::parse(json.value(key, "unknown"));
  }
};

}  // namespace

Json json_of(const TextCount& count) {
  return {{"documents", count.documents}, {"bytes", count.bytes}};
}
TextCount text_count_of(const Json& json) {
  return {json.at("documents").get<std::int64_t>(), json.at("bytes").get<std::int64_t>()};
}

Json json_of(const DocumentSource& source) {
  SourceWriter writer;
  DocumentSource copy = source;
  describe(writer, copy);
  return writer.json;
}
DocumentSource source_of(const Json& json) {
  DocumentSource source;
  SourceReader reader{json};
  describe(reader, source);
  return source;
}

void check_sources(const std::vector<DocumentSource>& sources, const std::string& where,
                   bool need_files) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const DocumentSource& source = sources[i];
    if (source.name.empty()) user_error("{}: sources[{}] has no name", where, i);
    if (!names.insert(source.name).second)
      user_error("{}: two sources have the name {}", where, source.name);
    if (need_files && source.files.empty())
      user_error("{}: the source {} has no files: give names or patterns of its inputs", where,
                 source.name);
    if (!source.date.empty() && !is_date_or_interval(source.date))
      user_error(
          "{}: the date of the source {} is '{}': write 2026-05-01, 2026-05 or 2026, or two of "
          "them, as in 2025-11/2026-05",
          where, source.name, source.date);
  }
}

std::vector<std::string> sources_of_files(const std::vector<DocumentSource>& sources,
                                          const std::vector<fs::path>& files) {
  const auto plain = [](const fs::path& path) { return fs::absolute(path).lexically_normal(); };
  std::map<fs::path, std::string> source_of_file;
  for (const DocumentSource& source : sources)
    for (const std::string& name : source.files) {
      const auto found = is_pattern(name) ? expand_pattern(name) : std::vector<fs::path>{name};
      for (const fs::path& file : found) source_of_file.try_emplace(plain(file), source.name);
    }
  std::vector<std::string> names;
  for (const fs::path& file : files) {
    const auto found = source_of_file.find(plain(file));
    names.push_back(found == source_of_file.end() ? "" : found->second);
  }
  return names;
}

std::string_view last_date(std::string_view date) { return date.substr(date.find('/') + 1); }

void SourceCounts::add(const SourceCounts& more) {
  read.add(more.read);
  kept.add(more.kept);
  for (const auto& [rule, languages] : more.removed)
    for (const auto& [language, count] : languages) removed[rule][language].add(count);
  for (const auto& [name, count] : more.notes) notes[name] += count;
}

void add_counts(CountsBySource& sum, const CountsBySource& more) {
  for (const auto& [name, counts] : more) sum[name].add(counts);
}

Json json_of(const CountsBySource& counts) {
  Json list = Json::array();
  for (const auto& [name, one] : counts) {
    Json removed = Json::object();
    for (const auto& [rule, languages] : one.removed)
      for (const auto& [language, count] : languages) removed[rule][language] = json_of(count);
    list.push_back({{"source", name},
                    {"read", json_of(one.read)},
                    {"kept", json_of(one.kept)},
                    {"removed", removed},
                    {"notes", one.notes}});
  }
  return list;
}

CountsBySource counts_by_source_of(const Json& json) {
  CountsBySource counts;
  for (const Json& one : json) {
    SourceCounts& source = counts[one.at("source").get<std::string>()];
    source.read = text_count_of(one.at("read"));
    source.kept = text_count_of(one.at("kept"));
    for (const auto& [rule, languages] : one.at("removed").items())
      for (const auto& [language, count] : languages.items())
        source.removed[rule][language] = text_count_of(count);
    source.notes = one.at("notes").get<std::map<std::string, std::int64_t>>();
  }
  return counts;
}

void add_counts(CountsByName& sum, const CountsByName& more) {
  for (const auto& [name, count] : more) sum[name].add(count);
}

Json json_of(const CountsByName& counts) {
  Json list = Json::array();
  for (const auto& [name, count] : counts) list.push_back({name, count.documents, count.bytes});
  return list;
}

CountsByName counts_by_name_of(const Json& json) {
  CountsByName counts;
  for (const Json& one : json)
    counts[one.at(0).get<std::string>()].add(
        TextCount{one.at(1).get<std::int64_t>(), one.at(2).get<std::int64_t>()});
  return counts;
}

std::string registered_domain(std::string_view url) {
  // Below two letters: what a registry hands out names under, in many countries.
  static constexpr std::array<std::string_view, 20> kCategories = {
      "ac", "co",  "com", "edu", "go",  "gob", "gov", "gouv", "govt", "gv",
      "id", "ltd", "mil", "ne",  "net", "nom", "or",  "org",  "plc",  "sch"};
  const std::string host = host_of(url);
  const std::size_t last = host.rfind('.');
  if (last == std::string::npos || last == 0 || host.starts_with('[')) return "";
  const std::string_view top = std::string_view(host).substr(last + 1);
  if (top.empty() || (top.front() >= '0' && top.front() <= '9')) return "";
  std::size_t begin = host.rfind('.', last - 1);
  if (begin == std::string::npos) return host;
  const std::string_view second = std::string_view(host).substr(begin + 1, last - begin - 1);
  if (top.size() == 2 && begin > 0 &&
      std::find(kCategories.begin(), kCategories.end(), second) != kCategories.end())
    begin = host.rfind('.', begin - 1);
  return begin == std::string::npos ? host : host.substr(begin + 1);
}

}  // namespace kintsugi
