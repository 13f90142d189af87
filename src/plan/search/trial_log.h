#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan/search/tuning.h"

namespace kintsugi {

// The trials of a tuning as a CSV file that grows by a line per trial, so that another process can
// go on where one ended.
class TrialLog {
 public:
  // Reads what is there. UserError with the line for a damaged file, and for trials of another
  // job; `job` says in words what is trained. An empty path: nothing is read or written.
  TrialLog(std::filesystem::path path, std::string job);

  const std::vector<Trial>& known() const { return known_; }  // a layout once, its last result
  void add(const Trial& trial);

 private:
  std::filesystem::path path_;
  std::string job_;
  std::vector<Trial> known_;
};

}  // namespace kintsugi
