#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/file_lock.h"
#include "data/corpora/record_reader.h"
#include "data/dedup/dedup_job.h"
#include "data/dedup/sorted_records.h"

namespace kintsugi {

class DedupDocuments;

enum class DedupAccess : std::uint8_t { Work, Look };  // Look: nothing is written

// The directory of a deduplication: where its files are, and which units are finished.
class DedupDirectory {
 public:
  using Json = nlohmann::ordered_json;

  // Writes dedup.json. UserError if it exists with other settings or inputs.
  explicit DedupDirectory(const DedupOptions& options, DedupAccess access = DedupAccess::Work);

  const DedupOptions& options() const { return options_; }
  std::size_t tasks() const { return tasks_; }
  std::size_t bands() const;
  // Which pieces are one sequence.
  std::size_t sequence_length() const;
  DedupStage first_stage() const { return dedup_stages(options_).front().stage; }
  std::size_t units(DedupStage stage) const;  // 0: the job has no such stage
  std::vector<std::filesystem::path> files_of(std::size_t task) const;
  std::int64_t input_bytes(std::size_t task) const;

  std::filesystem::path signatures(std::size_t task, std::size_t band) const;
  std::filesystem::path records(DedupStage stage, std::size_t unit) const;
  std::filesystem::path pairs(std::size_t band) const;
  std::filesystem::path removed(std::size_t task) const;
  std::filesystem::path sizes(std::size_t task) const;
  std::filesystem::path kept(std::size_t task, const std::string& packing) const;

  // The description of a unit: signatures/00012.json. Its last file, so that it exists if the unit
  // is finished.
  std::filesystem::path description(DedupStage stage, std::size_t unit) const;
  std::optional<Json> find_description(DedupStage stage, std::size_t unit) const;
  // UserError that names the stage to run if the unit is not finished.
  Json require(DedupStage stage, std::size_t unit) const;
  void finish(DedupStage stage, std::size_t unit, const Json& description) const;
  void write_summary(const Json& summary) const;
  // UserError if a task has other documents than when its first stage read them.
  void check_documents(std::size_t task, const DedupDocuments& documents) const;
  // UserError if another process works on the unit; meanwhile no other can.
  std::unique_ptr<FileLock> lock(DedupStage stage, std::size_t unit) const;
  std::unique_ptr<FileLock> lock_all() const;
  void check_idle() const;  // UserError if a process works there
  // What killed processes left. The first one when nobody can be about to write dedup.json.
  void remove_leftovers() const;
  void remove_stale_lock(DedupStage stage, std::size_t unit) const;

 private:
  std::filesystem::path folder(DedupStage stage) const;
  bool is_description(DedupStage stage, const Json& json) const;
  bool is_task_description(const Json& json) const;
  void start_over() const;
  Json identity() const;
  void keep_identity(DedupAccess access) const;

  DedupOptions options_;
  std::size_t tasks_;
};

// The documents of one task, in order.
class DedupDocuments {
 public:
  // `whole`: all keys of a row, not only those that are compared.
  DedupDocuments(const DedupOptions& options, std::vector<std::filesystem::path> files, bool whole);

  struct Entry {
    std::uint32_t number = 0;  // documents without text have none
    std::string text, url;
    std::string_view object;  // JSON, until the next call
    std::string file = {};    // of plain text and of objects, with their line
    std::uint64_t line = 0;
  };
  bool next(Entry& entry);

  std::int64_t documents() const { return documents_; }
  std::int64_t text_bytes() const { return text_bytes_; }
  std::int64_t empty() const { return empty_; }
  std::int64_t invalid() const { return invalid_; }
  std::int64_t bytes_read() const;  // of the files on disk
  std::vector<SkippedInput> take_skipped() { return std::exchange(skipped_, {}); }

 private:
  bool next_record(Record& record);
  bool read(const Record& record, Entry& entry);  // false: there is no document yet
  bool read_object(const Record& record, Entry& entry);
  bool read_segment(const Record& record, Entry& entry);

  const DedupOptions& options_;
  std::vector<std::filesystem::path> files_;
  bool whole_;
  std::size_t next_file_ = 0;
  std::unique_ptr<RecordReader> reader_;
  std::int64_t documents_ = 0, text_bytes_ = 0, empty_ = 0, invalid_ = 0, finished_bytes_ = 0;
  Document document_;
  std::string plain_, object_;  // of plain text
  std::vector<SkippedInput> skipped_;
};

// The stages. Signatures, samples and sequences of several tasks, with all threads:
void compute_records(const DedupDirectory& directory, DedupStage stage,
                     const std::vector<std::size_t>& tasks, const DedupProgress& progress);
// and one unit of each of the others.
void find_pairs(const DedupDirectory& directory, std::size_t band, std::int64_t memory,
                const DedupProgress& progress);
void find_clusters(const DedupDirectory& directory, const DedupProgress& progress);
void find_copies(const DedupDirectory& directory, DedupStage stage, std::size_t bucket,
                 std::int64_t memory, const DedupProgress& progress);
void remove_duplicates(const DedupDirectory& directory, std::size_t task, std::int64_t memory,
                       const DedupProgress& progress);

RecordForm signature_form(const DedupOptions& options);

// A checksum of a description.
std::uint64_t from_hex(const DedupDirectory::Json& text);

// Thrown inside of a unit if the user wants to stop.
struct DedupStopped {};

}  // namespace kintsugi
