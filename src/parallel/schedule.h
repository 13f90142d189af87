#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace kintsugi {

// What one pipeline rank does, one after the other. BackwardInput and BackwardWeight are the two
// halves of Backward: zero-bubble schedules put off the second, for which nobody waits.
enum class ActionKind {
  Forward,
  Backward,
  BackwardInput,
  BackwardWeight,
  SendActivation,
  ReceiveActivation,
  SendGradient,
  ReceiveGradient,
  Reduce,  // gradients of a chunk over the data ranks, after its last backward
};

std::string_view to_string(ActionKind kind);
bool is_compute(ActionKind kind);
bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);

struct Action {
  ActionKind kind;
  int micro_batch;  // of Reduce: the last one that went into the sum
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
  int chunks = 1;  // parts of the model per rank; more than one only when interleaved
};

// Chunk c of rank r holds part c * stages + r of the model.
struct PartPlace {
  int rank;
  int chunk;

  bool operator==(const PartPlace&) const = default;
};

// Where the next or the previous part of the model is; none behind the last and before the first.
std::optional<PartPlace> next_place(const PipelineShape& shape, PartPlace place);
std::optional<PartPlace> previous_place(const PipelineShape& shape, PartPlace place);

struct PipelineSchedule {
  PipelineShape shape;
  std::vector<std::vector<Action>> ranks;
};

// UserError where the numbers make no such schedule. Every rank's messages stand in an order that
// cannot deadlock, even if each send waits for its receive.
PipelineSchedule make_pipeline_schedule(const PipelineShape& shape);

}  // namespace kintsugi
