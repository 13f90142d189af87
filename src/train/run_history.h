#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint.h"
#include "train/config/config.h"
#include "train/run_data.h"

namespace kintsugi {

// The stages of a run, and of the runs that it continues (run.from).

// Returns the state at the start of the next stage: the stage of `state` becomes history. Its
// configuration is stored with `checkpoint`. The caller sets the number, data and seed of the
// stage.
TrainerState next_stage(TrainerState state, const std::filesystem::path& checkpoint);

// Parses the configuration that is stored with a checkpoint.
RunConfig parse_saved_config(const std::string& text, const std::string& source);

// Returns the configuration with the batches that the stages of the run had before it was resumed,
// from its latest checkpoint. Everything that maps steps to samples, or a number of tokens to
// steps, needs them. A checkpoint that cannot be read is reported when it is loaded.
RunConfig with_past_batches(RunConfig run);

// Returns the order of the samples of the stage in which a checkpoint was saved.
PastOrder past_order(const std::filesystem::path& checkpoint);

// UserError if run.from is in the run's own directory.
void check_other_run(const RunConfig& config);
// Returns the checkpoint that run.from names. UserError if it has none, if it is one of this run,
// or if its model has other shapes. Reads files, changes nothing.
std::filesystem::path start_of_branch(const RunConfig& config);

// What was trained, or will be, in a range of steps.
struct LineageStage {
  std::string run = {}, name = {};  // as in PastStage
  std::int64_t first_step = 0, last_step = 0;
  std::int64_t samples = 0;             // of these steps
  PastOrder order = {};                 // as far as a checkpoint recorded it
  std::vector<PastBatch> batches = {};  // as in PastStage
  std::vector<SkippedSamples> skipped = {};
  std::string text = {};            // its configuration, as YAML
  RunConfig config() const;         // parsed; UserError if it was not recorded
  std::string description() const;  // "stage decay of runs/x (steps 101 to 120)"
};
// Oldest first. The run's own stages follow the configuration; what is before them, its latest
// checkpoint or run.from.
std::vector<LineageStage> lineage_of(const RunConfig& run);

}  // namespace kintsugi
