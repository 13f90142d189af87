#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/yaml_reader.h"

namespace kintsugi {

struct TextCount {
  std::int64_t documents = 0, bytes = 0;  // of text
  void add(std::int64_t text_bytes) { ++documents, bytes += text_bytes; }
  void add(const TextCount& more) { documents += more.documents, bytes += more.bytes; }
  bool operator==(const TextCount&) const = default;
};
nlohmann::ordered_json json_of(const TextCount& count);
TextCount text_count_of(const nlohmann::ordered_json& json);

// The kinds of sources of the EU's summary of training content.
enum class SourceKind : std::uint8_t { Unknown, Public, Licensed, Crawled, User, Synthetic };
template <>
inline constexpr EnumWords<6> kEnumWords<SourceKind> = {"unknown", "public", "licensed",
                                                        "crawled", "user",   "synthetic"};

// What only people know about where documents come from. Empty: unknown.
struct DocumentSource {
  std::string name = {};
  std::vector<std::string> files = {};  // names or patterns; the first source with a file has it
  SourceKind kind = SourceKind::Unknown;
  std::string license = {}, url = {}, version = {}, creator = {}, description = {};
  std::string date =
      {};  // of collection: 2026-05-01, 2026-05 or 2026, or two of them: 2025/2026-05
  std::vector<std::string> languages = {};
};
template <class V>
void describe(V& v, DocumentSource& s) {
  v("name", s.name);
  v("files", s.files);
  v("kind", s.kind);
  v("license", s.license);
  v("url", s.url);
  v("version", s.version);
  v("creator", s.creator);
  v("description", s.description);
  v("date", s.date);
  v("languages", s.languages);
}
nlohmann::ordered_json json_of(const DocumentSource& source);
DocumentSource source_of(const nlohmann::ordered_json& json);

// UserError if a source has no name or, where they are needed, no files, if two have one name, or
// a date is none.
void check_sources(const std::vector<DocumentSource>& sources, const std::string& where,
                   bool need_files = true);
// The name of the source of each file; "" for files that no source has.
std::vector<std::string> sources_of_files(const std::vector<DocumentSource>& sources,
                                          const std::vector<std::filesystem::path>& files);
// The last day, month or year of a date of collection.
std::string_view last_date(std::string_view date);

// What a stage has done with the documents of a source.
struct SourceCounts {
  TextCount read = {}, kept = {};
  std::map<std::string, std::map<std::string, TextCount>> removed = {};  // by rule, then language
  std::map<std::string, std::int64_t> notes = {};  // "personal_data.email": masked spans
  void add(const SourceCounts& more);
};
using CountsBySource = std::map<std::string, SourceCounts>;  // "": of no source
void add_counts(CountsBySource& sum, const CountsBySource& more);
nlohmann::ordered_json json_of(const CountsBySource& counts);
CountsBySource counts_by_source_of(const nlohmann::ordered_json& json);

// Kept documents by the domain of their address, and by the file that they were read from.
using CountsByName = std::map<std::string, TextCount>;
void add_counts(CountsByName& sum, const CountsByName& more);
nlohmann::ordered_json json_of(const CountsByName& counts);  // [[name, documents, bytes], …]
CountsByName counts_by_name_of(const nlohmann::ordered_json& json);

// example.org of https://www.news.example.org/today, and example.co.uk of shop.example.co.uk: the
// last two labels, or three if the country's registry has categories below it. "": no domain, such
// as an IP address.
std::string registered_domain(std::string_view url);

}  // namespace kintsugi
