#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/work_stage.h"
#include "data/dedup/minhash.h"

namespace kintsugi {

// What is found: documents with similar words, the same text or the same URL; or equal pieces of
// documents.
enum class DedupBy : std::uint8_t { Words, Text, Url, Paragraphs, Lines, Substrings };

std::string_view to_string(DedupBy by);
std::optional<DedupBy> dedup_by_of(std::string_view name);

// Whether duplicates are cut out of documents.
inline bool cuts_pieces(DedupBy by) { return by >= DedupBy::Paragraphs; }

// A stage has units that are independent jobs: a task reads the files r, r + W, r + 2W, … of all
// inputs in the order of their paths; a band or a bucket has records of all tasks.
//   by words, text, url: Signatures (tasks), Pairs (bands), Clusters (1), Remove (tasks)
//   by paragraphs, lines: Sequences (tasks), Copies (buckets), Remove (tasks)
//   by substrings: Samples (tasks), Repeats (buckets), Sequences (tasks), Copies (buckets), Remove
enum class DedupStage : std::uint8_t {
  All,
  Signatures,
  Pairs,
  Clusters,
  Samples,    // of the sequences of words
  Repeats,    // samples that occur several times
  Sequences,  // of words, that have such a sample; or paragraphs, or lines
  Copies,     // sequences that occurred before
  Remove
};

std::string_view to_string(DedupStage stage);

// Finds duplicates and writes the documents without them. The files below `output` of the first
// three stages are datatrove's:
//   signatures/bucket_BBB/RRRRR.minhash.sig  of band B, task R: values, number of the document
//   pairs/BBBBB_00.dups                      task, document, task, document
//   clusters/RRRRRR.remove and .sizes        documents; document, size of its cluster
//   samples/RRRRR.records, sequences/…       per bucket: hash, place
//   repeats/BBBBB.records, copies/…          per task: place, number of pieces that stay
//   kept/RRRRR.jsonl.zst
// and beside them a description (.json) of each finished unit, with checksums, and summary.json
// when all are finished. The bytes depend only on the inputs and on what dedup.json holds: not on
// threads, memory, jobs and restarts.
struct DedupOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;  // a directory
  DedupBy by = DedupBy::Words;
  MinHashShape shape;  // by words
  std::string text_key = "text", url_key = "url";
  bool skip_invalid = false;  // leave out and count malformed lines and damaged parts
  std::size_t tasks = 0;      // W; 0: one per file

  // By paragraphs, lines and substrings.
  std::size_t buckets = 16;             // of hashes
  std::size_t shortest_paragraph = 40;  // characters after the normalization, also of a line
  std::size_t substring_words = 50;
  std::size_t shortest_document = 20;  // characters; one that was cut and is shorter is dropped

  bool cluster_size = false;    // each kept document gets the key minhash_cluster_size
  std::string packing = "zst";  // of kept documents: zst or gz

  DedupStage stage = DedupStage::All;
  std::size_t job = 0, jobs = 1;  // of the units of a stage, job 3 of 10 does 3, 13, 23, …
  std::size_t threads = 0;        // 0: one per core
  std::int64_t memory = std::int64_t{4} << 30;
  bool overwrite = false;
};

// What is shown meanwhile. All calls are thread-safe.
struct DedupProgress {
  std::function<void(const std::string& stage, std::int64_t total, const std::string& unit)> begin;
  std::function<void(std::int64_t more)> add;
  std::function<bool()> stop;  // true: leave the units under way undone and return
};

struct DedupReport {
  bool stopped = false;
  std::int64_t units = 0, done_before = 0;  // of this stage and job
  // Of all finished units, and of finished stages only. Documents without text are not counted.
  std::int64_t documents = 0, without_signature = 0, empty = 0, invalid = 0;
  std::int64_t pairs = 0, clusters = 0, duplicates = 0, kept = 0;
  std::int64_t text_bytes = 0, copies = 0;  // copies: of sequences, paragraphs or lines
  std::int64_t cut = 0, too_short = 0, removed_bytes = 0;  // documents, documents, of their texts
  std::vector<std::string> skipped;                        // damaged parts of the inputs
};

struct DedupStageUnits {
  DedupStage stage;
  std::size_t units;
};
// The stages of a job, each of which needs all units of those before it.
std::vector<DedupStageUnits> dedup_stages(const DedupOptions& options);

// What will be written, by the first documents of some inputs.
struct DedupEstimate {
  struct Files {
    DedupStage stage;
    double bytes;
  };
  double documents = 0;
  std::vector<Files> files;    // kept documents and sequences of words are at most that large
  double temporary_bytes = 0;  // besides, while a stage sorts
};
DedupEstimate estimate_dedup(const DedupOptions& options);

// The stages in order, each with its units and those that are missing, for job arrays. Writes
// nothing. UserError as for `deduplicate`; also if a process works there. Without inputs, the units
// of stages that read them are unknown.
std::vector<WorkStage> dedup_work(const DedupOptions& options);

DedupReport deduplicate(const DedupOptions& options, const DedupProgress& progress);

}  // namespace kintsugi
