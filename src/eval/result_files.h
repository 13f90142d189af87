#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// The results of one task in a result file of lm-evaluation-harness (keys "acc" before v0.4,
// "acc,none" since) or of a code harness, which has the tasks at the top level.
struct TaskResult {
  std::string file, task;
  std::map<std::string, double> metrics;  // by the key in the file
  std::optional<std::int64_t> shots;      // examples in the prompt, if the file says it

  // By a metric's name (acc), or a name with a filter (exact_match,strict-match). A name alone
  // prefers the filter "none", or takes the only filter; UserError if there are several.
  std::optional<double> find(const std::string& metric) const;
};

std::vector<TaskResult> parse_results(const std::string& json, const std::string& source);
// Of files, and of all *.json in directories: in a directory itself, else in its only subdirectory
// with such files (the model's, as `kintsugi eval --output` writes them).
std::vector<TaskResult> read_results(const std::vector<std::string>& paths);

}  // namespace kintsugi
