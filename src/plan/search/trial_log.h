#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan/search/tuning.h"

namespace kintsugi {

// The trials of a tuning in a CSV file, one line per trial, so that a later process can continue
// the tuning.
class TrialLog {
 public:
  // Reads an existing file. UserError with the line number if it is damaged or has trials of
  // another job; `job` describes what is trained. With an empty path nothing is read or written.
  TrialLog(std::filesystem::path path, std::string job);

  const std::vector<Trial>& known() const { return known_; }  // the last result of each layout
  void add(const Trial& trial);

 private:
  std::filesystem::path path_;
  std::string job_;
  std::vector<Trial> known_;
};

}  // namespace kintsugi
