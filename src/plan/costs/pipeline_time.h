#pragma once

#include <vector>

#include "parallel/schedule.h"

namespace kintsugi {

// Of one micro-batch on each pipeline rank, all its chunks together.
struct StageTimes {
  std::vector<double> forward = {}, backward = {};
  double weight_share = 0.5;       // of a backward: its second half
  double message = 0;              // from one rank to the next, where it is not hidden
  double first_message = 0;        // that the first takes longer
  std::vector<double> stops = {};  // waited for messages in both passes; empty: nothing
};

// Which rank has the most to do for a micro-batch.
std::size_t slowest_stage(const StageTimes& times);

// How long a schedule takes, in closed form: what simulate_pipeline finds for equal stages, and for
// others the slowest stage's time with one micro-batch's way through all.
double pipeline_s(const PipelineShape& shape, const StageTimes& times);

}  // namespace kintsugi
