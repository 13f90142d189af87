#pragma once

#include <string>
#include <vector>

#include "report/runs/step_series.h"

namespace kintsugi {

// The reply of /api/series: {"axis", "rows", "last_step", "keys": {"loss": {"x", "y", "low",
// "high"}}}. Keys that the series does not have are left out. Values have the digits of fp32.
std::string series_json(const StepSeries& series, const std::vector<std::string>& keys,
                        const PointRange& range);

// The rows from `first_row` on for a live view, at most `most` of each key: {"id", "keys": {"loss":
// {"x", "y"}}, "steps", "tokens", "hours", "rows"}. Neighbouring rows
// are averaged where there are more; x is the step of the last of them, and all x are in "steps".
std::string new_rows_json(const StepSeries& series, const std::string& id, std::size_t first_row,
                          std::size_t most);

}  // namespace kintsugi
