#pragma once

#include <string>
#include <vector>

#include "parallel/schedule.h"

namespace kintsugi {

// Of one micro-batch through one chunk, in any unit. Backward takes both halves.
struct ActionTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double message = 0;  // from the end of a send to the arrival
};

enum class Transport {
  Overlapped,  // sends and receives are posted; the pass that needs a message waits for it
  Blocking,    // a send and its receive wait for each other, and take the time of the message
};

struct Span {
  double start;
  double end;
};

struct PipelineTiming {
  std::vector<std::vector<Span>> spans;  // as PipelineSchedule::ranks; cut short by a deadlock
  double makespan = 0;
  double bubble = 0;           // share of ranks x makespan in which nothing is computed
  std::vector<double> idle;    // time per rank
  std::vector<int> peak_live;  // stashed passes per rank, in micro-batches of one chunk
  std::string deadlock;        // empty, or which rank waits with what
};

// Runs the lists as the ranks would: each in order, messages between two ranks matched in order.
PipelineTiming simulate_pipeline(const PipelineSchedule& schedule, const ActionTimes& times,
                                 Transport transport = Transport::Overlapped);

}  // namespace kintsugi
