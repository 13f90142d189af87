#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/work_stage.h"
#include "data/corpora/input_files.h"
#include "data/curation/curation_report.h"
#include "data/curation/recipe.h"

namespace kintsugi {

enum class CorpusCompression : std::uint8_t { Zstd, Gzip, None };
template <>
inline constexpr EnumWords<3> kEnumWords<CorpusCompression> = {"zstd", "gzip", "none"};

// Takes the documents of a corpus through a recipe into DIR/documents-00000.jsonl.zst and so on,
// with DIR/curation.json, which says what each step did. The output depends only on the inputs, the
// recipe and the options: not on the number of threads and jobs, nor on how often they were killed
// and restarted. The work is divided into units, ranges of the inputs; the files get their final
// names when all units are done.
struct CurateOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;  // DIR
  Recipe recipe;
  StepSources sources = {};
  std::string recipe_text = {};  // as it was written, for curation.json
  CorpusCompression compression = CorpusCompression::Zstd;
  bool skip_invalid = false;  // skip and count malformed records and damaged parts of the inputs
  int threads = 0;            // 0: one per core
  // Of text, after which a shard ends, and of inputs on the disk, after which a unit does.
  std::int64_t shard_bytes = std::int64_t{1} << 30;
  std::optional<ArrayTask> job = {};  // does some of the units; not set: all of them
  bool overwrite = false;
  double save_every_s = 10;
  std::size_t batch_bytes = std::size_t{4} << 20;
};

struct CurateProgress {
  TextCount read, kept;
  std::uint64_t input_bytes = 0, input_bytes_total = 0;  // of the files on disk, of this job
  std::int64_t text_bytes_before = 0;                    // from earlier runs of this job
};

struct CurateResult {
  // UnitsLeft: this job has done its units, others have not.
  enum class State : std::uint8_t { Finished, Stopped, WasComplete, UnitsLeft };
  State state = State::Finished;
  std::size_t units = 0, units_left = 0;  // of all jobs
  CurateProgress progress;
  CurationReport report;  // of all units, or of those of this job
  std::vector<SkippedInput> skipped;
  std::vector<CuratedShard> shards;
};

// The stage that `curate` has, for a job array. Writes nothing. UserError as for `curate`; also if
// a process works there. Without inputs, its number of units is unknown.
WorkStage curation_stage(const CurateOptions& options);

// `progress` is called after each batch; if it returns false, the job saves and stops.
CurateResult curate(const CurateOptions& options,
                    const std::function<bool(const CurateProgress&)>& progress);

}  // namespace kintsugi
