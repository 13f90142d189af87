#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/corpora/input_files.h"
#include "data/curation/curation_report.h"
#include "data/curation/recipe.h"

namespace kintsugi {

enum class CorpusCompression : std::uint8_t { Zstd, Gzip, None };
template <>
inline constexpr EnumWords<3> kEnumWords<CorpusCompression> = {"zstd", "gzip", "none"};

// Takes the documents of a corpus through a recipe into DIR/documents-00000.jsonl.zst and so on,
// with DIR/curation.json, which says what each step did. The output depends only on the inputs, the
// recipe and the options: not on the number of threads, nor on how often the job was killed and
// restarted. The files get their final names at the very end.
struct CurateOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;  // DIR
  Recipe recipe;
  std::string recipe_text = {};    // as it was written, for curation.json
  ReadReferences read_tasks = {};  // of the step that looks for evaluation tasks
  CorpusCompression compression = CorpusCompression::Zstd;
  bool skip_invalid = false;  // skip and count malformed records and damaged parts of the inputs
  int threads = 0;            // 0: one per core
  std::int64_t shard_bytes = std::int64_t{1} << 30;  // of text, after which a shard ends
  bool overwrite = false;
  double save_every_s = 10;
  std::size_t batch_bytes = std::size_t{4} << 20;
};

struct CurateProgress {
  TextCount read, kept;
  std::uint64_t input_bytes = 0, input_bytes_total = 0;  // of the files on disk
  std::int64_t text_bytes_before = 0;                    // from earlier runs of this job
};

struct CurateResult {
  enum class State : std::uint8_t { Finished, Stopped, WasComplete };
  State state = State::Finished;
  CurateProgress progress;
  CurationReport report;
  std::vector<SkippedInput> skipped;
  std::vector<CuratedShard> shards;
};

// `progress` is called after each batch; if it returns false, the job saves and stops.
CurateResult curate(const CurateOptions& options,
                    const std::function<bool(const CurateProgress&)>& progress);

}  // namespace kintsugi
