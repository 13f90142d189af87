#include "report/runs/run_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr int kMostLevels = 6;
constexpr std::int64_t kMostDirectories = 200'000;
constexpr std::size_t kMostSkipped = 300;
constexpr double kSearchInterval_s = 10,
                 kSearchShare = 20;  // a search takes at most 1/20 of the time

bool exists_here(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(fs::symlink_status(path, unknown));
}

}  // namespace

RunIndex::RunIndex(const std::vector<fs::path>& folders, Surroundings machine)
    : machine_(std::move(machine)) {
  std::vector<fs::path> known;
  for (const fs::path& given : folders) {
    std::error_code error;
    const fs::path path = fs::canonical(given, error);
    if (error == std::errc::no_such_file_or_directory)
      user_error("{} does not exist; give folders that hold runs, or run directories",
                 given.string());
    if (error || !fs::is_directory(path, error))
      user_error("{} is not a directory; give folders that hold runs, or run directories",
                 given.string());
    if (std::find(known.begin(), known.end(), path) != known.end()) continue;
    known.push_back(path);
    folders_.push_back({.path = path, .given = given.string()});
  }
  if (folders_.size() < 2) return;
  std::vector<std::string> names;
  for (Folder& folder : folders_) {
    const std::string name = printable(folder.path.filename().string());
    folder.prefix = name;
    for (int n = 2; std::find(names.begin(), names.end(), folder.prefix) != names.end(); ++n)
      folder.prefix = fmt::format("{}-{}", name, n);
    names.push_back(folder.prefix);
  }
}

std::vector<std::string> RunIndex::folders() const {
  std::vector<std::string> names;
  for (const Folder& folder : folders_) names.push_back(folder.given);
  return names;
}

void RunIndex::refresh() {
  if (machine_.now_s() >= next_search_s_) return search();
  for (auto& [id, run] : runs_)
    if (run.may_change()) run.refresh(machine_);
}

void RunIndex::search() {
  const double begin = machine_.now_s();
  found_.clear();
  skipped_.clear();
  order_.clear();
  more_skipped_ = directories_ = 0;
  for (const Folder& folder : folders_) visit(folder.path, folder, 0);
  runs_ = std::move(found_);
  if (more_skipped_ > 0) skipped_.push_back({"…", fmt::format("and {} more", more_skipped_)});
  const double end = machine_.now_s();
  next_search_s_ = end + std::max(kSearchInterval_s, kSearchShare * (end - begin));
}

std::string RunIndex::id_of(const fs::path& directory, const Folder& folder) const {
  std::string path = printable(directory.lexically_relative(folder.path).string());
  if (folder.prefix.empty()) return path;
  return path == "." ? folder.prefix : folder.prefix + "/" + path;
}

bool RunIndex::add_run(const fs::path& directory, const Folder& folder) {
  if (!exists_here(directory / "status.json") && !exists_here(directory / "metrics.jsonl"))
    return false;
  const std::string id = id_of(directory, folder);
  if (found_.contains(id)) {  // control characters in names are written as such text
    skip(directory, "has the same name as another run");
    return true;
  }
  const auto known = runs_.find(id);
  SummaryReader run = known != runs_.end() ? std::move(known->second) : SummaryReader(directory);
  run.refresh(machine_);
  for (const SkippedFile& file : run.skipped()) skip(file.path, file.why);
  if (!run.is_run()) {
    bytes_of_others_ += run.bytes_read();
    return false;
  }
  run.summary().id = id;
  const std::string name = directory == folder.path
                               ? directory.filename().string()
                               : directory.lexically_relative(folder.path).string();
  run.summary().name = printable(name);
  found_.emplace(id, std::move(run));
  order_.push_back(id);
  return true;
}

void RunIndex::visit(const fs::path& directory, const Folder& folder, int depth) {
  if (++directories_ > kMostDirectories) {
    if (directories_ == kMostDirectories + 1)
      skip(directory, fmt::format("not searched: more than {} directories", kMostDirectories));
    return;
  }
  if (!add_run(directory, folder)) descend(directory, folder, depth);
}

void RunIndex::descend(const fs::path& directory, const Folder& folder, int depth) {
  std::error_code error;
  std::vector<fs::path> inside;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unknown;
    const fs::path& path = entry->path();
    if (path.filename().string().starts_with(".")) continue;
    if (!entry->is_symlink(unknown) && entry->is_directory(unknown)) inside.push_back(path);
  }
  if (error) skip(directory, error.message());
  if (depth == kMostLevels && !inside.empty())
    return skip(directory, fmt::format("not searched: more than {} levels below {}", kMostLevels,
                                       folder.given));
  std::sort(inside.begin(), inside.end());
  for (const fs::path& path : inside) visit(path, folder, depth + 1);
}

void RunIndex::skip(const fs::path& path, const std::string& why) {
  if (skipped_.size() < kMostSkipped)
    skipped_.push_back({path, why});
  else
    ++more_skipped_;
}

const SummaryReader* RunIndex::find(std::string_view id) const {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : &found->second;
}

std::vector<const SummaryReader*> RunIndex::in_order() const {
  std::vector<const SummaryReader*> list;
  for (const std::string& id : order_) list.push_back(&runs_.at(id));
  return list;
}

fs::path RunIndex::given_path(const SummaryReader& run) const {
  for (const Folder& folder : folders_)
    if (id_of(run.directory(), folder) == run.summary().id) {
      if (run.directory() == folder.path) return folder.given;
      return (folder.given / run.directory().lexically_relative(folder.path)).lexically_normal();
    }
  return run.directory();
}

std::uint64_t RunIndex::bytes_read() const {
  std::uint64_t bytes = bytes_of_others_;
  for (const auto& [id, run] : runs_) bytes += run.bytes_read();
  return bytes;
}

nlohmann::ordered_json runs_json(const RunIndex& index) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array(), left_out = runs;
  for (const SummaryReader* run : index.in_order()) runs.push_back(to_json(run->summary()));
  for (const SkippedFile& file : index.skipped())
    left_out.push_back({{"path", printable(file.path.string())}, {"why", file.why}});
  return {
      {"runs", std::move(runs)}, {"skipped", std::move(left_out)}, {"folders", index.folders()}};
}

}  // namespace kintsugi
