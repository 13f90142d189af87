#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "data/curation/curation_report.h"
#include "data/provenance/file_hashes.h"
#include "data/provenance/sources.h"

namespace kintsugi {

// A file that a stage wrote, and what it has.
struct StageOutput {
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::string xxh3;           // as the stage recorded it; empty: it did not
  std::string sha256 = {};    // of the file that is there
  CountsByName sources = {};  // text by source
  CountsByName domains = {};
};

// A stage of the way from original files to training data, as its files tell.
struct DataStage {
  enum class Kind : std::uint8_t { Curation, Dedup, Store };
  Kind kind = Kind::Curation;
  std::filesystem::path directory = {};  // of a store its prefix
  std::string program = {};              // that ran it; empty: unknown
  TextCount in = {}, out = {};
  std::int64_t tokens = 0;  // of a store
  std::string how = {};     // "minhash …", "byte-level BPE, 4096 tokens"
  std::vector<InputFile> inputs = {};
  std::vector<StageOutput> outputs = {};
  CurationReport report = {};             // of a curation
  CurationProvenance provenance = {};     // of a curation
  CountsBySource counts = {};             // of curations and deduplications
  std::vector<std::string> unknown = {};  // what its files do not say
};
std::string_view to_string(DataStage::Kind kind);

// An input that no stage wrote.
struct OriginalFile {
  InputFile input;
  std::string state;  // "missing", "changed: …"; empty: it is there with its size
};

// The stages behind some data, each after those whose outputs it reads.
struct DataHistory {
  std::vector<DataStage> stages;
  std::vector<std::size_t> last;  // the stages that were asked for
  std::vector<OriginalFile> originals;
  std::vector<DocumentSource> sources;  // of all recipes
};

// Of curated and deduplicated directories, token stores and run directories. `sources`: of original
// files that no recipe has. UserError if a name is none of these, or not finished.
DataHistory read_history(const std::vector<std::filesystem::path>& names,
                         const std::vector<DocumentSource>& sources);

// Reads the outputs of the last stages on several threads, sets their SHA-256, and returns a
// sentence for each that is missing, damaged or changed.
std::vector<std::string> check_outputs(DataHistory& history, const ProgressCall& progress);
// The same for the original files, which sets their state.
void check_originals(DataHistory& history, const ProgressCall& progress);

}  // namespace kintsugi
