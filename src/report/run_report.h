#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/goodput.h"
#include "report/runs/expert_history.h"
#include "report/runs/run_summary.h"

namespace kintsugi {

// What the files of a run directory say about a run, whether it trains or has ended.
struct RunReport {
  std::filesystem::path directory;
  RunSummary summary = {};  // state, step and losses, as all views of a run show them
  nlohmann::ordered_json status = nlohmann::ordered_json::object();  // status.json; may be older
  Goodput goodput = {};
  std::string goodput_problem = {};                     // why goodput.jsonl was not read
  std::vector<nlohmann::ordered_json> last_steps = {};  // the last records of metrics.jsonl
  ExpertHistory experts = {};
};

// Reads status.json, goodput.jsonl and the end of metrics.jsonl. Lines that are damaged are left
// out, and so is a damaged status.json. UserError if the directory holds no run.
RunReport read_run(const std::filesystem::path& directory);

std::string report_text(const RunReport& run);  // several lines
nlohmann::ordered_json report_json(const RunReport& run);

}  // namespace kintsugi
