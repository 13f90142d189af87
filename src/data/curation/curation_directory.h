#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/file_lock.h"
#include "data/curation/curation_report.h"

namespace kintsugi {

// The directory of a curation. Its work is divided into units, ranges of the inputs, which any
// processes may do in any order:
//   units/made_from.json               what determines the output
//   units/00003.progress.json          of an unfinished unit: its journal
//   units/00003.json                   of a finished one: its report and its files,
//   units/documents-00003-00000.…      which are here, each with origins-00003-00000.json
// When all units are finished, any process renames the files to documents-00000.… and so on, writes
// curation.json and removes units/. Several may do so at once, and each of them may be killed: the
// steps are the same for all, and each step may be repeated.
class CurationDirectory {
 public:
  // Consecutive inputs of `unit_bytes` on the disk, or the first that exceed it. The last unit may
  // be smaller.
  static std::vector<std::vector<std::filesystem::path>> units_of(
      const std::vector<std::filesystem::path>& inputs, std::uint64_t unit_bytes);

  // `made_from`: JSON of what determines the output.
  CurationDirectory(std::filesystem::path path, std::string made_from, std::size_t units)
      : path_(std::move(path)), made_from_(std::move(made_from)), units_(units) {}

  // The finished curation, if it is; UserError if it was made with other settings.
  std::optional<CurationRecord> finished() const;
  // UserError if the directory has files of others, or of an unfinished curation with other
  // settings.
  void check() const;
  // Makes the directory ready for units. False: the curation is finished.
  bool begin() const;
  // Only one process that does all units may hold this one. UserError.
  std::unique_ptr<FileLock> lock_all() const;
  std::unique_ptr<FileLock> lock(std::size_t unit) const;  // UserError if another process holds it
  // UserError if a process works on all units, or on one.
  void check_idle() const;
  void start_over() const;
  // Nothing is left of a curation that has not saved anything and that nobody works on.
  void remove_if_unused() const;

  bool is_finished(std::size_t unit) const;
  std::vector<std::size_t> missing() const;
  // Of a finished unit, or the journal of an unfinished one; an empty record if there is none.
  CurationRecord record(std::size_t unit) const;
  void save(std::size_t unit, const CurationRecord& journal) const;
  void finish(std::size_t unit, const CurationRecord& record) const;
  std::filesystem::path shard(const CuratedShard& shard) const;  // of a unit
  static std::string shard_name(std::size_t unit, std::size_t number, std::string_view ending);

  // If all units are finished: the curation. `ending` is that of its files; the inputs of the
  // units are added to `provenance`.
  std::optional<CurationRecord> merge(std::size_t most_examples, std::string_view ending,
                                      const CurationProvenance& provenance) const;
  void replace_report(const CurationRecord& record) const;  // of a finished curation

 private:
  std::filesystem::path units() const { return path_ / "units"; }
  std::filesystem::path report() const { return path_ / "curation.json"; }
  std::filesystem::path file(std::size_t unit, std::string_view ending) const;
  std::string made_from_of_unit() const;
  void keep_settings() const;
  void check_files() const;
  void check_settings() const;
  void check_units_idle() const;
  CurationRecord merged(std::size_t most_examples, std::string_view ending,
                        const CurationProvenance& provenance) const;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  void publish(const CurationRecord& record,
               const std::vector<std::filesystem::path>& sources) const;
  void remove_units() const noexcept;

  std::filesystem::path path_;
  std::string made_from_;
  std::size_t units_;
};

}  // namespace kintsugi
