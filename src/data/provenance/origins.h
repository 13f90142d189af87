#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpora/record_reader.h"
#include "data/curation/curation_report.h"
#include "data/dedup/dedup_job.h"
#include "data/provenance/sources.h"

namespace kintsugi {

// The stage that wrote a file of documents, found by the files beside it.
struct WritingStage {
  enum class Kind : std::uint8_t { Curation, Dedup };
  Kind kind = Kind::Curation;
  std::filesystem::path directory;
};
std::optional<WritingStage> stage_that_wrote(const std::filesystem::path& file);
inline constexpr const char* kCurationFile = "curation.json";
inline constexpr const char* kDedupFile = "dedup.json";

// What DIR/dedup.json says: the inputs, and how their documents are numbered. UserError if it is
// damaged.
DedupOptions read_dedup_settings(const std::filesystem::path& directory);

// The curations that these files, or those that they were made from, went through.
std::vector<CurationRecord> curations_of(const std::vector<std::filesystem::path>& files);

// What a document says of itself; empty: nothing.
struct DocumentLabels {
  std::string origin, url, language, date, license;
};
DocumentLabels labels_of(std::string_view object, const std::string& url_key = "url");

// "raw/a.jsonl:12": file and line. Line 0: the whole file.
struct OriginPlace {
  std::string file;
  std::uint64_t line = 0;
};
OriginPlace parse_origin(const std::string& origin);

// Counts documents by the source and the domain that their members tell. The sources are those of
// the curations that some files went through.
class OriginCounter {
 public:
  explicit OriginCounter(const std::vector<std::filesystem::path>& files,
                         std::string url_key = "url");

  // `rule`: by which it was removed; empty: `kept_bytes` of its text are kept.
  void count(std::string_view object, std::int64_t text_bytes, const std::string& rule,
             std::int64_t kept_bytes);
  const CountsBySource& sources() const { return sources_; }
  const CountsByName& domains() const { return domains_; }

 private:
  std::string url_key_;
  std::map<std::string, std::string, std::less<>> source_of_file_;
  CountsBySource sources_;
  CountsByName domains_;
};

}  // namespace kintsugi
