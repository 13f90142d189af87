#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/table.h"

namespace kintsugi {

// What the files of a run directory say: status.json, the end of metrics.jsonl, launch/exit_code.
// Missing or damaged files leave fields empty; nothing here throws because of them.
struct RunStatus {
  std::string state = {};  // of status.json; empty: the run has not started
  std::int64_t step = 0, total_steps = 0;
  std::optional<double> loss = {}, valid_loss = {}, eta_s = {};
  std::optional<double> tokens_per_s = {}, mfu = {};  // medians of the last steps
  std::optional<double> joule_per_token = {};         // of the last steps
  std::optional<double> goodput = {};                 // fraction of the time that trained
  std::optional<std::int64_t> attempts = {};
  std::string reason = {};            // why it ended: of status.json
  std::string updated = {};           // UTC
  std::optional<int> exit_code = {};  // of the job; empty: it goes on
};
RunStatus read_run_status(const std::filesystem::path& run_dir);
std::optional<int> read_exit_code(const std::filesystem::path& run_dir);  // without the rest

// One line for each run: the table of --collect.
struct CollectedRun {
  std::string name = {};
  RunStatus status = {};
};
// The run directories directly below `directory`, by name. UserError if there are none.
std::vector<CollectedRun> collect_runs(const std::filesystem::path& directory);
Table table_of(const std::vector<CollectedRun>& runs);

}  // namespace kintsugi
