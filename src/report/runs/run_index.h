#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "report/runs/run_summary.h"

namespace kintsugi {

// The runs below some folders, with a summary of each. A run is a directory with a status.json of a
// run, or with metrics.jsonl and config.yaml. Directories inside runs, links and hidden directories
// are not searched.
class RunIndex {
 public:
  // UserError if one of the folders is no directory.
  explicit RunIndex(const std::vector<std::filesystem::path>& folders,
                    Surroundings machine = this_machine());

  // Looks at the files of runs that may still change. Every ten seconds, or less often if that
  // takes long, it looks at all runs and for new ones.
  void refresh();
  void search();  // all runs, and new ones

  // By id: the path below the folder, "." for the folder itself; with several folders, the name of
  // the folder comes first.
  const std::map<std::string, SummaryReader, std::less<>>& runs() const { return runs_; }
  const SummaryReader* find(std::string_view id) const;  // nullptr: no such run
  // Folders in the order in which they were given, the runs of each by their paths.
  std::vector<const SummaryReader*> in_order() const;
  // The directory of a run: the folder as it was given, and the path below it.
  std::filesystem::path given_path(const SummaryReader& run) const;
  // What was left out; at most a few hundred, the last one then says how many more.
  const std::vector<SkippedFile>& skipped() const { return skipped_; }
  std::vector<std::string> folders() const;  // as they were given
  std::uint64_t bytes_read() const;

 private:
  struct Folder {
    std::filesystem::path path;
    std::string given;
    std::string prefix = {};  // of ids
  };
  void visit(const std::filesystem::path& directory, const Folder& folder, int depth);
  void descend(const std::filesystem::path& directory, const Folder& folder, int depth);
  // Whether the directory is a run; keeps what is known of it.
  bool add_run(const std::filesystem::path& directory, const Folder& folder);
  void skip(const std::filesystem::path& path, const std::string& why);
  std::string id_of(const std::filesystem::path& directory, const Folder& folder) const;

  Surroundings machine_;
  std::vector<Folder> folders_;
  std::map<std::string, SummaryReader, std::less<>> runs_, found_;
  std::vector<std::string> order_;  // ids, as they were found
  std::vector<SkippedFile> skipped_;
  std::int64_t more_skipped_ = 0, directories_ = 0;
  std::uint64_t bytes_of_others_ = 0;  // read in directories that are no runs
  double next_search_s_ = 0;
};

// The reply of /api/runs: {"runs", "skipped", "folders"}.
nlohmann::ordered_json runs_json(const RunIndex& index);

}  // namespace kintsugi
