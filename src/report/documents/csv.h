#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

struct CsvRun {
  std::string name;
  std::filesystem::path metrics;  // metrics.jsonl
};

// Writes one row for each step of each run, with all values of metrics.jsonl. Nested values have
// dotted names: valid.SET.loss, eval.TASK.METRIC. The first column is `run` if there are several
// runs. Of a repeated step the newest record is written. Numbers are written as they are in the
// file; unknown values are empty.
// Holds 24 bytes per step of one run in memory. `write` gets some kilobytes at a time. UserError if
// a run has no metrics.jsonl.
void write_csv(const std::vector<CsvRun>& runs, const std::function<void(std::string_view)>& write);

}  // namespace kintsugi
