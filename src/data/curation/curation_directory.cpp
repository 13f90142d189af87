#include "data/curation/curation_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/output_file.h"
#include "data/corpora/corpus_journal.h"
#include "data/stores/append_file.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSettings = "made_from.json";
constexpr const char* kShard = "documents-";
constexpr const char* kOrigins = "origins-";
constexpr const char* kFinished = ".json";
constexpr const char* kJournal = ".progress.json";
constexpr const char* kLock = ".lock";

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code gone;  // another process removes it when the curation is finished
  for (fs::directory_iterator at(directory, gone), end; !gone && at != end; at.increment(gone))
    names.push_back(at->path().filename().string());
  return names;
}

void require_same(const fs::path& file, const std::string& before, const std::string& now) {
  if (const std::string difference = identity_difference(before, now); !difference.empty())
    user_error(
        "{} belongs to a job with other settings: {}; start over with --overwrite, or choose "
        "another --output",
        file.string(), difference);
}

fs::path origins_beside(const fs::path& shard) {
  return shard.parent_path() / origins_file(shard.filename().string());
}

std::unique_ptr<FileLock> take(const fs::path& path, const std::string& what) {
  std::string holder;
  auto lock = FileLock::try_take(path, holder);
  if (!lock)
    user_error("another process is writing {} ({}): wait for it or choose another --output", what,
               holder);
  return lock;
}

}  // namespace

std::vector<std::vector<fs::path>> CurationDirectory::units_of(const std::vector<fs::path>& inputs,
                                                               std::uint64_t unit_bytes) {
  std::vector<std::vector<fs::path>> units;
  std::uint64_t bytes = unit_bytes;
  for (const fs::path& input : inputs) {
    if (bytes >= unit_bytes) {
      units.emplace_back();
      bytes = 0;
    }
    units.back().push_back(input);
    bytes += fs::file_size(input);
  }
  return units;
}

fs::path CurationDirectory::file(std::size_t unit, std::string_view ending) const {
  return units() / fmt::format("{:05}{}", unit, ending);
}

fs::path CurationDirectory::shard(const CuratedShard& shard) const { return units() / shard.file; }

std::string CurationDirectory::shard_name(std::size_t unit, std::size_t number,
                                          std::string_view ending) {
  return fmt::format("{}{:05}-{:05}{}", kShard, unit, number, ending);
}

// Of thousands of units, each has only a hash of the settings, which list all inputs.
std::string CurationDirectory::made_from_of_unit() const {
  return nlohmann::json{{"settings", hex64(hash64(made_from_))}}.dump();
}

std::optional<CurationRecord> CurationDirectory::finished() const {
  auto record = read_curation_record(report());
  if (record) require_same(report(), record->made_from, made_from_);
  return record;
}

void CurationDirectory::check() const {
  check_files();
  check_settings();
}

void CurationDirectory::check_files() const {
  for (const std::string& name : names_in(path_))
    if (name != report().filename() && name != kLock && name != units().filename() &&
        name != "launch" && !name.starts_with(kShard) && !name.starts_with(kOrigins))
      user_error("{} has other files, such as {}: choose an empty or a new directory",
                 path_.string(), name);
}

bool CurationDirectory::begin() const {
  fs::create_directories(path_);
  bool is_finished = finished().has_value();
  if (!is_finished) {
    const bool is_new = fs::create_directory(units());
    is_finished = finished().has_value();  // by another process, which then removed units/
    const std::vector<std::string> names = names_in(path_);
    if (!is_finished && is_new && std::any_of(names.begin(), names.end(), [](const auto& name) {
          return name.starts_with(kShard);
        })) {
      remove_units();
      user_error("{} has documents, but no curation.json: start over with --overwrite",
                 path_.string());
    }
  }
  is_finished ? remove_units() : keep_settings();
  return !is_finished;
}

void CurationDirectory::keep_settings() const {
  const fs::path path = units() / kSettings;
  if (!fs::exists(path)) {
    NewFile file(path, {.own_temporary = true});
    file.write(made_from_.data(), made_from_.size());
    file.publish();
  }
  check_settings();
}

void CurationDirectory::check_settings() const {
  const fs::path path = units() / kSettings;
  if (fs::exists(path)) require_same(path, read_text_file(path), made_from_);
}

std::unique_ptr<FileLock> CurationDirectory::lock_all() const {
  return take(path_ / kLock, path_.string());
}

std::unique_ptr<FileLock> CurationDirectory::lock(std::size_t unit) const {
  return take(file(unit, kLock), fmt::format("unit {} of {}", unit, path_.string()));
}

void CurationDirectory::check_idle() const {
  if (fs::exists(path_ / kLock)) lock_all();
  check_units_idle();
}

void CurationDirectory::check_units_idle() const {
  for (const std::string& name : names_in(units()))
    if (name.ends_with(kLock))
      take(units() / name,
           fmt::format("unit {} of {}", fs::path(name).stem().string(), path_.string()));
}

void CurationDirectory::start_over() const {
  check_files();
  check_units_idle();
  for (const std::string& name : names_in(path_))
    if (name != kLock && name != "launch") fs::remove_all(path_ / name);
}

void CurationDirectory::remove_if_unused() const {
  for (const std::string& name : names_in(units())) {
    std::string holder;
    if (name.ends_with(kLock) ? !FileLock::try_take(units() / name, holder)
                              : name != kSettings && !name.starts_with(kShard) &&
                                    !name.starts_with(kOrigins) && name[0] != '.')
      return;
  }
  remove_units();
}

void CurationDirectory::remove_units() const noexcept {
  std::error_code ignored;  // another process does the same
  fs::remove_all(units(), ignored);
}

bool CurationDirectory::is_finished(std::size_t unit) const {
  return fs::exists(file(unit, kFinished));
}

std::vector<std::size_t> CurationDirectory::missing() const {
  std::set<std::string> names;
  for (std::string& name : names_in(units())) names.insert(std::move(name));
  std::vector<std::size_t> missing;
  for (std::size_t unit = 0; unit < units_; ++unit)
    if (!names.contains(file(unit, kFinished).filename().string())) missing.push_back(unit);
  return missing;
}

CurationRecord CurationDirectory::record(std::size_t unit) const {
  for (const char* ending : {kFinished, kJournal}) {
    auto record = read_curation_record(file(unit, ending));
    if (!record) continue;
    if (record->made_from != made_from_of_unit())
      user_error("{} belongs to a job with other settings: start over with --overwrite",
                 file(unit, ending).string());
    return std::move(*record);
  }
  return {};
}

void CurationDirectory::save(std::size_t unit, const CurationRecord& journal) const {
  CurationRecord record = journal;
  record.made_from = made_from_of_unit();
  write_curation_record(file(unit, kJournal), record);
}

void CurationDirectory::finish(std::size_t unit, const CurationRecord& record) const {
  CurationRecord finished = record;
  finished.made_from = made_from_of_unit();
  finished.all_written = true;
  sync_directory(units());  // its files, before the record that says that they are there
  write_curation_record(file(unit, kFinished), finished);
  fs::remove(file(unit, kJournal));
}

// ---- from the units to the curation

std::optional<CurationRecord> CurationDirectory::merge(std::size_t most_examples,
                                                       std::string_view ending,
                                                       const CurationProvenance& provenance) const {
  if (!missing().empty()) return finished();
  try {
    CurationRecord record = merged(most_examples, ending, provenance);
    remove_units();
    return record;
  } catch (...) {
    // Another process was faster.
    if (auto record = finished()) return record;
    throw;
  }
}

void CurationDirectory::replace_report(const CurationRecord& record) const {
  write_curation_record(report(), record);
}

CurationRecord CurationDirectory::merged(std::size_t most_examples, std::string_view ending,
                                         const CurationProvenance& provenance) const {
  CurationRecord sum{.made_from = made_from_,
                     .position = {},
                     .report = {},
                     .skipped = {},
                     .shards = {},
                     .provenance = provenance};
  std::vector<fs::path> sources;
  const auto add_shard = [&](CuratedShard shard) {
    sources.push_back(this->shard(shard));
    shard.file = fmt::format("{}{:05}{}", kShard, sum.shards.size(), ending);
    sum.shards.push_back(std::move(shard));
  };
  for (std::size_t unit = 0; unit < units_; ++unit) {
    CurationRecord record = this->record(unit);
    for (CuratedShard& shard : record.shards) add_shard(std::move(shard));
    sum.skipped.insert(sum.skipped.end(), record.skipped.begin(), record.skipped.end());
    std::vector<InputFile>& inputs = sum.provenance.inputs;
    inputs.insert(inputs.end(), record.provenance.inputs.begin(), record.provenance.inputs.end());
    std::vector<StepReport> steps = record.report.steps;
    sum.report.add(std::move(record.report), most_examples);
    // Of the steps themselves: the same in all units.
    for (std::size_t i = 0; i < steps.size(); ++i)
      sum.report.steps[i].facts = std::move(steps[i].facts);
  }
  if (sum.shards.empty()) {  // no document was kept: an empty file
    add_shard({.file = shard_name(0, 0, ending),
               .text = {},
               .bytes = 0,
               .hash = hex64(StreamHash().digest())});
    if (!fs::exists(path_ / sum.shards[0].file)) {
      AppendFile(sources[0], 0).sync();
      write_shard_origins(origins_beside(sources[0]), {});
    }
  }
  sum.all_written = true;
  publish(sum, sources);
  return sum;
}

// Another process may have done it.
void CurationDirectory::rename(const fs::path& from, const fs::path& to) const {
  std::error_code error;
  fs::rename(from, to, error);
  if (error && !(error == std::errc::no_such_file_or_directory && fs::exists(to)))
    failure("cannot rename {} to {}: {}", from.string(), to.string(), error.message());
}

void CurationDirectory::publish(const CurationRecord& record,
                                const std::vector<fs::path>& sources) const {
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const CuratedShard& shard = record.shards[i];
    rename(origins_beside(sources[i]), origins_beside(path_ / shard.file));
    rename(sources[i], path_ / shard.file);
    if (const auto bytes = fs::file_size(path_ / shard.file); bytes != shard.bytes)
      user_error("{} has {} bytes and should have {}: start over with --overwrite",
                 (path_ / shard.file).string(), bytes, shard.bytes);
  }
  sync_directory(path_);
  const fs::path own = units() / report().filename();  // its temporary file is removed with units/
  write_curation_record(own, record);
  rename(own, report());
  sync_directory(path_);
}

}  // namespace kintsugi
