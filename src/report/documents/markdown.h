#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "report/runs/step_series.h"

namespace kintsugi {

struct DocumentRun {
  std::string name = {};
  nlohmann::ordered_json view = {};  // of run_view_json
  const StepSeries* steps = nullptr;
};

// A report to paste into an issue or an appendix: what was trained, what it cost, what happened.
// `differences`: the configuration keys that differ, as in compare_json. `written`: when and by
// what.
std::string markdown_report(const std::vector<DocumentRun>& runs,
                            const nlohmann::ordered_json& differences, std::string_view written);

// The steps of the loss table: 1, 2, 5, 10, 20, … below `last`, and `last`.
std::vector<std::int64_t> loss_table_steps(std::int64_t last);

}  // namespace kintsugi
