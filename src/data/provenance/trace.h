#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/provenance/origins.h"
#include "data/stores/token_store.h"

namespace kintsugi {

// A document as it was in one of the files on its way into a token store.
struct TracedRecord {
  std::string stage;  // that wrote the file: deduplicated, curated; original: none
  std::string file;
  std::uint64_t line = 0;  // 0: the whole file
  std::string text;
  DocumentLabels labels;
  std::optional<DocumentSource> source = {};  // of an original record
};
struct DocumentTrace {
  std::vector<TracedRecord> records;  // from the file that was tokenized to the original one
  std::string problem;                // why the last one is not the original; empty: it is
};
nlohmann::ordered_json json_of(const DocumentTrace& trace);
// Lines for people; of the text of the last record at most this many bytes.
std::string to_string(const DocumentTrace& trace, std::size_t most_text);

// Follows documents of token stores back to where they come from. Files are read from their
// beginning, but those that are asked for in their order only once.
class DocumentTracer {
 public:
  DocumentTracer();
  ~DocumentTracer();
  DocumentTrace trace(const TokenShard& shard, std::int64_t document);

 private:
  struct Place {  // of a record
    std::string file;
    std::uint64_t line = 0;
    std::string text, object;
  };
  struct Cursor;
  struct DedupCursor;

  // What the .json file of a store says; no inputs: there is none, or it is of an older version.
  struct KnownStore {
    StoreInfo info = {};
    std::vector<InputFile> inputs = {};
  };
  const KnownStore& store_of(const TokenShard& shard);
  std::int64_t documents_before(const TokenShard& shard, const StoreInfo& info) const;
  void find(const TokenShard& shard, std::int64_t document, DocumentTrace& trace);
  Place in_input(const InputFile& input, std::int64_t document);
  Place at_line(const std::string& file, std::uint64_t line, const std::string& text_key);
  Place before_dedup(const std::filesystem::path& directory, const Place& kept);
  void follow(Place place, const std::string& text_key, DocumentTrace& trace);
  std::optional<Place> origin_of(const Place& curated, const std::string& text_key,
                                 DocumentTrace& trace);
  void add(const Place& place, DocumentTrace& trace) const;

  std::map<std::string, KnownStore> stores_;  // by shard
  std::map<std::string, std::unique_ptr<Cursor>> cursors_;
  std::map<std::string, std::unique_ptr<DedupCursor>> dedups_;
  std::map<std::string, std::vector<CurationRecord>> curations_;  // by directory
};

}  // namespace kintsugi
