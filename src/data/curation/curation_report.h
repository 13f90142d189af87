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

namespace kintsugi {

struct TextCount {
  std::int64_t documents = 0, bytes = 0;  // of text
  void add(std::int64_t text_bytes) { ++documents, bytes += text_bytes; }
};

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

// DIR/curation.json; of a unit: its journal, and what it has become in the end.
struct CurationRecord {
  std::string made_from;  // JSON of what determines the output: inputs, recipe, options
  InputOffset position;
  CurationReport report;
  std::vector<SkippedInput> skipped;
  std::vector<CuratedShard> shards;  // of a journal the last one is open
  bool all_written = false;          // it is no journal
};
// Nothing if it is none that this version can read.
std::optional<CurationRecord> curation_record_of(const nlohmann::ordered_json& json);
// Nothing if there is no such file, UserError if it is damaged.
std::optional<CurationRecord> read_curation_record(const std::filesystem::path& path);
void write_curation_record(const std::filesystem::path& path, const CurationRecord& record);

}  // namespace kintsugi
