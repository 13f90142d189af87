#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/runs/step_series.h"

namespace kintsugi {

// What a Markdown report says about the steps of a run: a few numbers, so that the steps of many
// runs need not be in memory together.
struct StepFigures {
  struct Loss {
    float loss = StepColumn::kNone;   // NaN: unknown; infinite: not finite
    float valid = StepColumn::kNone;  // of the last validation after the table step above
  };
  std::int64_t steps = 0;
  std::vector<Loss> losses = {};  // one for each table step
  // Medians and percentiles over all steps; empty: unknown.
  std::optional<double> rate_p10 = {}, rate = {}, rate_p90 = {};  // tokens/s
  std::optional<double> mfu = {}, mfu_full_attention = {}, step_time_s = {};
  std::optional<double> data_wait = {};  // its part of the time of all steps
};
StepFigures step_figures(const StepSeries& series, const std::vector<std::int64_t>& table_steps);

// The steps of the loss table: 1, 2, 5, 10, 20, … below the highest of `last_steps`, and all of
// `last_steps`.
std::vector<std::int64_t> loss_table_steps(const std::vector<std::int64_t>& last_steps);

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
