#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "report/runs/json_members.h"

namespace kintsugi {

// One value of a record of metrics.jsonl.
struct RecordValue {
  std::string name = {};  // nested values have dotted names: valid.SET.loss, eval.TASK.METRIC
  JsonMember::Kind kind = JsonMember::Kind::Null;
  std::string text = {};  // a number as it is in the file, a text without its quotes
};

// All values of a record, in their order; empty if the line is no complete JSON object.
std::vector<RecordValue> record_values(std::string_view line);

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
