#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/documents/step_figures.h"

namespace kintsugi {

struct DocumentRun {
  std::string name = {};
  nlohmann::ordered_json view = {};  // of run_json
  StepFigures figures = {};
};

struct MarkdownReport {
  std::vector<DocumentRun> runs = {};
  std::vector<std::int64_t> table_steps = {};  // of the loss table and of all figures
  nlohmann::ordered_json differences = {};     // "configuration" of compare_json
  std::string written = {};                    // when and by what
};

// A report to paste into an issue or an appendix: what was trained, what it cost, what happened.
std::string to_markdown(const MarkdownReport& report);

}  // namespace kintsugi
