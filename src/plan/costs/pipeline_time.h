#pragma once

#include <vector>

#include "parallel/schedule.h"

namespace kintsugi {

// Seconds of one micro-batch: in one chunk, and on each pipeline rank, summed over its chunks.
struct ChunkTimes {
  double forward = 0, backward = 0;
};
struct StageTimes {
  std::vector<double> forward = {}, backward = {};
  double weight_share = 0.5;       // fraction of a backward that computes weight gradients
  double message = 0;              // send to the next rank, if not overlapped
  double first_message = 0;        // extra time of the first message
  std::vector<double> stops = {};  // waits for messages in forward and backward; empty: none
  std::vector<std::vector<ChunkTimes>> chunks = {};  // of each rank; pipeline_s() needs none
};

// The rank that takes the longest for a micro-batch.
std::size_t slowest_stage(const StageTimes& times);

// Seconds of a schedule, in closed form. Equal to simulate_pipeline for equal stages; otherwise the
// time of the slowest stage plus one micro-batch through all others.
double pipeline_s(const PipelineShape& shape, const StageTimes& times);

// Seconds of a schedule whose actions are executed in their order: chunks differ, and messages that
// do not arrive in time are waited for in every round. Long schedules are extrapolated.
double executed_pipeline_s(const PipelineShape& shape, const StageTimes& times);

}  // namespace kintsugi
