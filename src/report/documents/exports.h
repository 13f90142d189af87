#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_members.h"
#include "core/progress.h"
#include "report/documents/wandb.h"
#include "report/runs/config_differences.h"
#include "report/runs/run_summary.h"

namespace kintsugi {

// The metrics of runs for other programs: CSV, and the files of MLflow and of W&B.

// One value of a record of metrics.jsonl.
struct RecordValue {
  std::string name = {};  // nested values have dotted names: valid.SET.loss, eval.TASK.METRIC
  JsonMember::Kind kind = JsonMember::Kind::Null;
  std::string text = {};                 // a number as it is in the file, a text without its quotes
  std::optional<double> number() const;  // empty if it is none, or infinite
};
using RecordValues = std::vector<RecordValue>;
// All values of a record, in their order; empty if the line is no complete JSON object.
RecordValues record_values(std::string_view line);
// The number of this name.
std::optional<double> number_of(const RecordValues& values, std::string_view name);

// Calls use(values) for each step of a metrics.jsonl, in their order; of a repeated step for the
// newest record. Holds 24 bytes per step in memory. UserError if the file cannot be read.
void visit_records(const std::filesystem::path& metrics,
                   const std::function<void(const RecordValues&)>& use,
                   const ProgressCall& progress = {});

struct CsvRun {
  std::string name;
  std::filesystem::path metrics;  // metrics.jsonl
};

// Writes one row for each step of each run, with all values of metrics.jsonl. The first column is
// `run` if there are several runs. Numbers are written as they are in the file; unknown values are
// empty. `write` gets some kilobytes at a time. UserError if a run has no metrics.jsonl.
void write_csv(const std::vector<CsvRun>& runs, const std::function<void(std::string_view)>& write);

// A run as experiment trackers know it.
struct TrackedRun {
  TrackerRun facts = {};
  std::filesystem::path directory = {};
  std::string state = {};  // as in RunSummary
  std::optional<double> end_s = {};
  std::optional<int> exit_code = {};
};
TrackedRun tracked_run(const SummaryReader& run);

// Adds the run to a file store of MLflow, or replaces what an earlier export of it has written
// there; other files of the run stay. The store is made if it does not exist. Returns the directory
// of the run, which appears complete or not at all. UserError if the directory is no such store, or
// if the run there is not from here.
std::filesystem::path export_to_mlflow(const TrackedRun& run, const std::filesystem::path& store,
                                       const ProgressCall& progress = {});

// Writes FOLDER/offline-run-DATE_TIME-ID/run-ID.wandb, or replaces it, and returns its path.
std::filesystem::path export_to_wandb(const TrackedRun& run, const std::filesystem::path& folder,
                                      const ProgressCall& progress = {});

}  // namespace kintsugi
