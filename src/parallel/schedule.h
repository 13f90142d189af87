#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace kintsugi {

// The actions of a pipeline rank. BackwardInput and BackwardWeight are the two halves of Backward:
// zero-bubble schedules delay the second, because no other rank waits for it.
enum class ActionKind {
  Forward,
  Backward,
  BackwardInput,
  BackwardWeight,
  SendActivation,
  ReceiveActivation,
  SendGradient,
  ReceiveGradient,
  Reduce,  // reduce the gradients of a chunk over the data ranks, after its last backward
};

std::string_view to_string(ActionKind kind);
bool is_compute(ActionKind kind);
bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);

struct Action {
  ActionKind kind;
  int micro_batch;  // Reduce: the last one that contributed
  int chunk;

  bool operator==(const Action&) const = default;
};

enum class PipelineKind { GPipe, OneForwardOneBackward, Interleaved, ZeroBubbleH1 };

std::string_view to_string(PipelineKind kind);
PipelineKind parse_pipeline_kind(std::string_view name);  // UserError lists the names

struct PipelineShape {
  PipelineKind kind = PipelineKind::OneForwardOneBackward;
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;  // per rank; more than one only if interleaved
};

// A chunk of the pipeline. In layer order, chunk c of rank r has number c * stages + r.
struct PipelineChunk {
  int rank;
  int chunk;

  bool operator==(const PipelineChunk&) const = default;
};

// The chunk that holds the next or previous layers of the model; none after the last or before the
// first.
std::optional<PipelineChunk> next_chunk(const PipelineShape& shape, PipelineChunk from);
std::optional<PipelineChunk> previous_chunk(const PipelineShape& shape, PipelineChunk from);

struct PipelineSchedule {
  PipelineShape shape;
  std::vector<std::vector<Action>> ranks;
};

// Throws UserError if the shape does not allow such a schedule.
void check_pipeline_shape(const PipelineShape& shape);

// The time of a schedule, if messages between ranks take `message_s` and overlap with compute.
// `seconds`: of each compute action.
using ActionSeconds = std::function<double(int rank, const Action& action)>;
double schedule_s(const PipelineShape& shape, const ActionSeconds& seconds, double message_s);

// Checks the shape. Sends and receives are ordered so that they cannot deadlock,
// even if each send blocks until its receive.
PipelineSchedule make_pipeline_schedule(const PipelineShape& shape);

}  // namespace kintsugi
