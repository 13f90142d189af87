#include "parallel/pipeline.h"

#include <algorithm>
#include <bit>
#include <map>

#include "backend/phase.h"
#include "core/error.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

// When, in a rank's list, a micro-batch takes a buffer and when it is done with it.
struct Interval {
  int begin = -1, end = -1;
};
using Intervals = std::map<int, Interval>;  // by micro-batch

// The least n such that micro-batch m + n comes after m has gone, for all m.
int ring_size(const Intervals& intervals) {
  const int count = static_cast<int>(intervals.size());
  for (int n = 1; n < count; ++n) {
    bool enough = true;
    for (int m = 0; enough && m + n < count; ++m)
      enough = intervals.at(m + n).begin > intervals.at(m).end;
    if (enough) return n;
  }
  return std::max(count, 1);
}

// "forward 3", and the chunk where there are several: for a trace.
std::string name_of(const Action& action, std::size_t chunks) {
  std::string name = fmt::format("{} {}", to_string(action.kind), action.micro_batch);
  if (chunks > 1) name += fmt::format(" of chunk {}", action.chunk);
  return name;
}

struct ChunkIntervals {
  Intervals inputs, stashes, weights, gradients;
};

}  // namespace

std::vector<ChunkSlots> slots_of(const PipelineSchedule& schedule, int rank) {
  const PipelineShape& shape = schedule.shape;
  std::vector<ChunkIntervals> all(static_cast<std::size_t>(shape.chunks));
  const auto begin = [](Intervals& intervals, int micro_batch, int at) {
    Interval& interval = intervals[micro_batch];
    if (interval.begin < 0) interval.begin = at;
  };
  const auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
  for (int at = 0; at < static_cast<int>(actions.size()); ++at) {
    const Action& action = actions[static_cast<std::size_t>(at)];
    ChunkIntervals& chunk = all[static_cast<std::size_t>(action.chunk)];
    const int m = action.micro_batch;
    const bool has_head = !next_place(shape, {rank, action.chunk});
    switch (action.kind) {
      case ActionKind::ReceiveActivation:
        begin(chunk.inputs, m, at);
        break;
      case ActionKind::Forward:
        begin(chunk.inputs, m, at);
        begin(chunk.stashes, m, at);
        if (has_head) begin(chunk.gradients, m, at);
        break;
      case ActionKind::ReceiveGradient:
        begin(chunk.gradients, m, at);
        break;
      case ActionKind::BackwardInput:
        begin(chunk.weights, m, at);
        chunk.gradients[m].end = at;
        break;
      case ActionKind::Backward:
        chunk.gradients[m].end = at;
        chunk.inputs[m].end = chunk.stashes[m].end = at;
        break;
      case ActionKind::BackwardWeight:
        chunk.inputs[m].end = chunk.stashes[m].end = chunk.weights[m].end = at;
        break;
      case ActionKind::SendGradient:
        chunk.gradients[m].end = at;
        break;
      default:
        break;
    }
  }
  std::vector<ChunkSlots> slots;
  for (int c = 0; c < shape.chunks; ++c) {
    const ChunkIntervals& chunk = all[static_cast<std::size_t>(c)];
    // One more where they are sent, so that the next can arrive meanwhile.
    const bool sends = previous_place(shape, {rank, c}).has_value();
    slots.push_back({.stage = {.inputs = ring_size(chunk.inputs),
                               .stashes = ring_size(chunk.stashes),
                               .weights = chunk.weights.empty() ? 0 : ring_size(chunk.weights)},
                     .gradients = ring_size(chunk.gradients) + (sends ? 1 : 0)});
  }
  return slots;
}

Pipeline::Pipeline(Backend& backend, Arena& arena, StageScratch& scratch,
                   const std::vector<StagePart>& parts, const PipelineShape& shape,
                   Communicator& group, BucketHooks* hooks)
    : backend_(&backend),
      scratch_(&scratch),
      group_(&group),
      schedule_(make_pipeline_schedule(shape)) {
  const DType dtype = scratch.context().store->dtype();
  const Shape size{scratch.size().rows(), scratch.context().local.hidden_size};
  const std::vector<ChunkSlots> slots = slots_of(schedule_, group.rank());
  const auto micro_batches = static_cast<std::size_t>(shape.micro_batches);
  for (std::size_t c = 0; c < parts.size(); ++c) {
    Chunk chunk{.stage = Stage(scratch, arena, parts[c], slots[c].stage, hooks)};
    for (int i = 0; i < slots[c].gradients; ++i)
      chunk.gradients.push_back(
          {arena.allocate(Region::Workspace, "gradient of the residual stream", dtype, size)});
    chunk.inputs_on_their_way.resize(micro_batches);
    chunk.gradients_on_their_way.resize(micro_batches);
    chunks_.push_back(std::move(chunk));
  }
  // The head's input, or what travels to the next stage while the next micro-batch is computed.
  const std::size_t outputs = parts.size() == 1 && parts[0].head ? 1 : outputs_.size();
  for (std::size_t i = 0; i < outputs; ++i)
    outputs_[i].buffer = arena.allocate(Region::Activations, "last block's output", dtype, size);
  if (outputs == 1) outputs_[1] = outputs_[0];
  batches_.resize(micro_batches);
}

const PipelineSchedule& Pipeline::schedule_for(int micro_batches) {
  KINTSUGI_CHECK(micro_batches == schedule_.shape.micro_batches,
                 "a step of {} micro-batches in a pipeline for {}", micro_batches,
                 schedule_.shape.micro_batches);
  return schedule_;
}

void Pipeline::run(const Step& step, const Load& load) {
  if (group_->size() == 1) return run_alone(step, load);
  std::fill(batches_.begin(), batches_.end(), MicroBatch{});
  for (const Action& action :
       schedule_for(step.micro_batches).ranks[static_cast<std::size_t>(group_->rank())])
    act(action, step, load);
  for (Chunk& chunk : chunks_)
    for (Outgoing& buffer : chunk.gradients) reclaim(buffer);
  for (Outgoing& buffer : outputs_) reclaim(buffer);
}

// On one stage, forward and backward of a micro-batch follow each other.
void Pipeline::run_alone(const Step& step, const Load& load) {
  Chunk& chunk = chunks_.front();
  for (int number = 0; number < step.micro_batches; ++number) {
    batches_[0] = load(number);
    const auto pass = [&] {
      {
        const Phase phase(*backend_, [&] { return name_of({ActionKind::Forward, number, 0}, 1); });
        forward(chunk, 0, step);
      }
      const Phase phase(*backend_, [&] { return name_of({ActionKind::Backward, number, 0}, 1); });
      chunk.stage.backward(batch(0), 0, rows(gradient(chunk, 0).buffer, batch(0)));
    };
    if (step.repeatable)
      backend_->replay(
          derive_key(static_cast<std::uint64_t>(batch(0).sequences), batch(0).overwrites,
                     std::bit_cast<std::uint64_t>(step.gradient_scale)),
          std::ref(pass));
    else
      pass();
  }
}

void Pipeline::act(const Action& action, const Step& step, const Load& load) {
  const auto number = static_cast<std::size_t>(action.micro_batch);
  Chunk& chunk = chunks_[static_cast<std::size_t>(action.chunk)];
  const PartPlace here{group_->rank(), action.chunk};
  const auto arrive = [&](std::vector<Communicator::Work>& on_their_way) {
    group_->wait(std::exchange(on_their_way[number], {}));
  };
  const bool from_here = action.chunk == 0 && (action.kind == ActionKind::ReceiveActivation ||
                                               action.kind == ActionKind::Forward);
  if (from_here && batches_[number].sequences == 0) batches_[number] = load(action.micro_batch);
  const MicroBatch& current = batches_[number];
  Outgoing& gradient = this->gradient(chunk, action.micro_batch);
  const auto name = [&] { return name_of(action, chunks_.size()); };
  switch (action.kind) {
    case ActionKind::ReceiveActivation:
      chunk.inputs_on_their_way[number] =
          group_->receive(chunk.stage.input(current, action.micro_batch),
                          previous_place(schedule_.shape, here)->rank);
      break;
    case ActionKind::Forward: {
      arrive(chunk.inputs_on_their_way);
      const Phase phase(*backend_, name);
      forward(chunk, action.micro_batch, step);
      break;
    }
    case ActionKind::SendActivation:
      send(outputs_[output_], current, next_place(schedule_.shape, here)->rank);
      break;
    case ActionKind::ReceiveGradient:
      reclaim(gradient);
      chunk.gradients_on_their_way[number] =
          group_->receive(rows(gradient.buffer, current), next_place(schedule_.shape, here)->rank);
      break;
    case ActionKind::Backward: {
      arrive(chunk.gradients_on_their_way);
      const Phase phase(*backend_, name);
      chunk.stage.backward(current, action.micro_batch, rows(gradient.buffer, current));
      break;
    }
    case ActionKind::BackwardInput: {
      arrive(chunk.gradients_on_their_way);
      const Phase phase(*backend_, name);
      chunk.stage.backward_input(current, action.micro_batch, rows(gradient.buffer, current));
      break;
    }
    case ActionKind::BackwardWeight: {
      const Phase phase(*backend_, name);
      chunk.stage.backward_weight(current, action.micro_batch);
      break;
    }
    case ActionKind::SendGradient:
      send(gradient, current, previous_place(schedule_.shape, here)->rank);
      break;
    case ActionKind::Reduce:  // the stages told the hooks, bucket by bucket
      break;
  }
}

void Pipeline::forward(Chunk& chunk, int number, const Step& step) {
  const MicroBatch& current = batch(number);
  output_ ^= 1;
  Outgoing& output = outputs_[output_];
  reclaim(output);
  const Tensor x = rows(output.buffer, current);
  chunk.stage.forward(current, number, x);
  if (!chunk.stage.part().head) return;
  Outgoing& gradient = this->gradient(chunk, number);
  if (step.gradient_scale != 0) reclaim(gradient);
  chunk.stage.loss(current, x, rows(gradient.buffer, current), step.gradient_scale, step.loss_sum);
}

void Pipeline::send(Outgoing& from, const MicroBatch& batch, int to) {
  from.sending = group_->send(rows(from.buffer, batch), to);
}

void Pipeline::evaluate(const Step& step, const Load& load) {
  Step forward_only = step;
  forward_only.gradient_scale = 0;
  for (int number = 0; number < step.micro_batches; ++number) {
    batches_[0] = load(number);
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const PartPlace here{group_->rank(), static_cast<int>(c)};
      if (const auto from = previous_place(schedule_.shape, here))
        group_->wait(group_->receive(chunks_[c].stage.input(batch(0), 0), from->rank));
      forward(chunks_[c], 0, forward_only);
      if (const auto to = next_place(schedule_.shape, here))
        send(outputs_[output_], batch(0), to->rank);
    }
  }
  for (Outgoing& buffer : outputs_) reclaim(buffer);
}

}  // namespace kintsugi
