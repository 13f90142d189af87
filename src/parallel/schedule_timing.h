#pragma once

#include <string>
#include <vector>

#include "parallel/schedule.h"

namespace kintsugi {

// Times of one micro-batch in one chunk, in any unit. Backward takes backward_input +
// backward_weight.
struct ActionTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double message = 0;  // from the send to the arrival
};

enum class Transport {
  Overlapped,  // sends and receives are asynchronous; the action that needs a message waits for it
  Blocking,    // a send and its receive wait for each other and take the time of the message
};

struct Span {
  double start;
  double end;
};

struct PipelineTiming {
  std::vector<std::vector<Span>> spans;  // by rank and action; incomplete after a deadlock
  double makespan = 0;
  double bubble = 0;           // idle fraction of ranks × makespan
  std::vector<double> idle;    // time per rank
  std::vector<int> peak_live;  // per rank: most micro-batches (of one chunk) stashed at a time
  std::string deadlock;        // empty, or the rank and the action that are blocked
};

// Simulates the schedule: every rank runs its actions in order; messages between two ranks match in
// order.
PipelineTiming simulate_pipeline(const PipelineSchedule& schedule, const ActionTimes& times,
                                 Transport transport = Transport::Overlapped);

// Draws one row of characters per rank, at most `columns` wide, and a legend. Cells show the number
// of the micro-batch if it fits.
std::string draw_schedule(const PipelineSchedule& schedule, const PipelineTiming& timing,
                          int columns = 100);

// The same as an SVG picture, with a rectangle per forward and backward.
std::string schedule_svg(const PipelineSchedule& schedule, const PipelineTiming& timing);

}  // namespace kintsugi
