#pragma once

#include <filesystem>
#include <optional>

#include "train/trainer/run_context.h"

namespace kintsugi {

// What a run that continues is compared with. run.state is that of the checkpoint.

// UserError if the configuration asks for another run than that of the checkpoint. Sets the first
// step of the schedule. `begins`: a run or a stage begins.
void check_start(RunContext& run, const std::optional<RunStart>& start, bool begins);
// The record of the content of the stage's data.
std::filesystem::path data_record(const RunContext& run);
// Logs every configuration key whose value has changed, and a jump of the learning rate. A run
// that has a checkpoint keeps its run.from.
void report_changes(RunContext& run, const RunStart& start);

}  // namespace kintsugi
