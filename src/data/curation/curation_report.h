#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/table.h"
#include "data/corpora/corpus_pipeline.h"
#include "data/curation/curation_example.h"
#include "data/curation/steps.h"
#include "data/curation/text_lengths.h"
#include "data/provenance/file_hashes.h"
#include "data/provenance/sources.h"

namespace kintsugi {

// What a step has done.
struct StepReport {
  std::string name = {};
  TextCount in = {}, out = {};
  // By rule, then language; "" if no step has found one.
  std::map<std::string, std::map<std::string, TextCount>> removed = {};
  std::map<std::string, std::int64_t> notes = {};
  std::map<std::string, std::int64_t> facts = {};  // of the step itself, not of documents
  // Samples of evaluation tasks that were found: in how many documents, and the largest share of
  // the sample in one of them.
  struct Leak {
    std::int64_t documents = 0;
    double share = 0;
    std::string hash = {};  // of the sample: its position in a file may change
  };
  std::map<std::string, Leak> leaks = {};
  std::map<std::string, SearchedTask> tasks = {};  // whose samples were looked for
};

class CurationReport {
 public:
  std::vector<StepReport> steps;
  std::map<std::string, std::pair<TextCount, TextCount>> inputs;  // by file: read, kept
  LengthsByLanguage lengths;
  CountsBySource sources;
  CurationExamples examples;
  std::int64_t invalid_records = 0;
  std::string first_invalid;

  void add(CurationReport other, std::size_t most_examples);

  TextCount read() const;
  TextCount kept() const;
  Table table() const;  // a row per step and rule
};

// A file of the output.
struct CuratedShard {
  std::string file;  // below the directory
  TextCount text;
  std::uint64_t bytes = 0;
  std::string hash;  // XXH3
};

// Where the documents of a shard come from: DIR/origins-00000.json, when the shard is finished.
struct ShardOrigins {
  CountsByName inputs;   // by file
  CountsByName domains;  // by the registered domain of their addresses
};
void write_shard_origins(const std::filesystem::path& path, const ShardOrigins& origins);
// Of the file of documents. UserError if the file is missing or damaged.
ShardOrigins read_shard_origins(const std::filesystem::path& documents);
std::string origins_file(const std::string& documents);  // of documents-00000.jsonl.zst

// What the output does not depend on.
struct CurationProvenance {
  std::string recipe;  // as it was written
  std::vector<DocumentSource> sources;
  std::vector<InputFile> inputs;
};
bool is_same(const CurationProvenance& a, const CurationProvenance& b);

// DIR/curation.json; of a unit: its journal, and what it has become in the end.
struct CurationRecord {
  std::string made_from;  // JSON of what determines the output: inputs, recipe, options
  InputOffset position;
  CurationReport report;
  std::vector<SkippedInput> skipped;
  std::vector<CuratedShard> shards;  // of a journal the last one is open
  bool all_written = false;          // it is no journal
  CurationProvenance provenance = {};
  ShardOrigins open_shard = {};  // of a journal
  std::string program = {};      // that wrote it; empty: this one
};
// Nothing if it is none that this version can read.
std::optional<CurationRecord> curation_record_of(const nlohmann::ordered_json& json);
// Nothing if there is no such file, UserError if it is damaged.
std::optional<CurationRecord> read_curation_record(const std::filesystem::path& path);
void write_curation_record(const std::filesystem::path& path, const CurationRecord& record);

}  // namespace kintsugi
