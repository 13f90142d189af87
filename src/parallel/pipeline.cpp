#include "parallel/pipeline.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <tuple>
#include <utility>

#include "backend/phase.h"
#include "core/error.h"
#include "core/philox.h"
#include "model/block.h"

namespace kintsugi {
namespace {

// The first and last action of a rank's list that use a buffer for a micro-batch.
struct Interval {
  int begin = -1, end = -1;
};
using Intervals = std::vector<Interval>;  // by micro-batch; empty: the chunk has no such buffers

// Name in a trace: "forward 3", with the chunk if there are several.
std::string name_of(const Action& action, std::size_t chunks) {
  std::string name = fmt::format("{} {}", to_string(action.kind), action.micro_batch);
  if (chunks > 1) name += fmt::format(" of chunk {}", action.chunk);
  return name;
}

struct ChunkIntervals {
  Intervals inputs, stashes, weights, gradients;
};

std::vector<ChunkIntervals> intervals_of(const PipelineSchedule& schedule, int rank) {
  const PipelineShape& shape = schedule.shape;
  std::vector<ChunkIntervals> all(static_cast<std::size_t>(shape.chunks));
  const auto begin = [&](Intervals& intervals, int micro_batch, int at) {
    if (intervals.empty()) intervals.resize(static_cast<std::size_t>(shape.micro_batches));
    Interval& interval = intervals[micro_batch];
    if (interval.begin < 0) interval.begin = at;
  };
  const auto& actions = schedule.ranks[rank];
  for (int at = 0; at < static_cast<int>(actions.size()); ++at) {
    const Action& action = actions[at];
    ChunkIntervals& chunk = all[action.chunk];
    const int m = action.micro_batch;
    const bool has_head = !next_chunk(shape, {rank, action.chunk});
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
  return all;
}

// Which buffer each micro-batch of each chunk uses.
struct Buffers {
  int count = 0;
  std::vector<std::vector<int>> of;  // by chunk and micro-batch
};

constexpr int kNoLimit = std::numeric_limits<int>::max();

// Assigns as few buffers as possible, plus `more` unless that exceeds `most`. Of the free buffers,
// takes the one that has been free for the longest.
Buffers assign_buffers(std::span<const ChunkIntervals> chunks, Intervals ChunkIntervals::*kind,
                       int more = 0, int most = kNoLimit) {
  struct User {
    Interval interval;
    std::size_t chunk, micro_batch;
  };
  std::vector<User> users;
  Buffers buffers;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const Intervals& intervals = chunks[c].*kind;
    buffers.of.emplace_back(intervals.size());
    for (std::size_t m = 0; m < intervals.size(); ++m) users.push_back({intervals[m], c, m});
  }
  std::ranges::sort(
      users, [](const User& a, const User& b) { return a.interval.begin < b.interval.begin; });
  // A heap of the buffers, the one that is free first on top.
  using Busy = std::pair<int, int>;  // until when, and the buffer
  const auto assign = [&](int count) {
    std::vector<Busy> all;
    for (int buffer = 0; buffer < count; ++buffer) all.emplace_back(-1, buffer);
    std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy({}, std::move(all));
    for (const User& user : users) {
      int buffer = count;
      if (busy.empty() || busy.top().first >= user.interval.begin) {
        ++count;
      } else {
        buffer = busy.top().second;
        busy.pop();
      }
      busy.emplace(user.interval.end, buffer);
      buffers.of[user.chunk][user.micro_batch] = buffer;
    }
    return count;
  };
  const int fewest = assign(0);
  buffers.count = assign(std::clamp(most, fewest, fewest + more));
  return buffers;
}

// Assigns all buffers except the stashes. Embeddings use as many as a chunk's own stashes.
RankSlots slots_without_stashes(const std::vector<ChunkIntervals>& chunks, int rank,
                                int most_gradients = kNoLimit) {
  RankSlots slots;
  const Buffers inputs = assign_buffers(chunks, &ChunkIntervals::inputs);
  slots.inputs = inputs.count;
  // One more if gradients are sent, so that the next one can be received during the send.
  const bool sends = rank > 0 || chunks.size() > 1;
  Buffers gradients =
      assign_buffers(chunks, &ChunkIntervals::gradients, sends ? 1 : 0, most_gradients);
  slots.gradients = gradients.count;
  slots.gradient_of = std::move(gradients.of);
  for (std::size_t c = 0; c < chunks.size(); ++c)
    slots.chunks.push_back(
        {.inputs = inputs.of[c],
         .stashes = {},
         .embeddings = assign_buffers({&chunks[c], 1}, &ChunkIntervals::stashes).of[0],
         .weights = assign_buffers({&chunks[c], 1}, &ChunkIntervals::weights).of[0]});
  return slots;
}

// Assigns slots.stashes, which exist, to the micro-batches.
void assign_stashes(const std::vector<ChunkIntervals>& chunks, RankSlots& slots) {
  const Buffers common = assign_buffers(chunks, &ChunkIntervals::stashes);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    std::vector<int>& stashes = slots.chunks[c].stashes;
    stashes = slots.shared ? common.of[c] : slots.chunks[c].embeddings;
    if (slots.shared) continue;
    const auto first = std::ranges::find(slots.stashes, static_cast<int>(c));
    for (int& stash : stashes) stash += static_cast<int>(first - slots.stashes.begin());
  }
}

}  // namespace

RankSlots slots_of(const PipelineSchedule& schedule, int rank, const std::vector<int>& layers,
                   bool alike) {
  const std::vector<ChunkIntervals> chunks = intervals_of(schedule, rank);
  RankSlots slots = slots_without_stashes(chunks, rank);
  int own_blocks = 0;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const int own = assign_buffers({&chunks[c], 1}, &ChunkIntervals::stashes).count;
    slots.stashes.insert(slots.stashes.end(), static_cast<std::size_t>(own), static_cast<int>(c));
    own_blocks += own * layers[c];
  }
  // If chunks share stashes, fewer are needed, but each must hold the largest chunk.
  const int common = assign_buffers(chunks, &ChunkIntervals::stashes).count;
  const auto largest = std::ranges::max_element(layers);
  slots.shared = alike && common * *largest < own_blocks;
  if (slots.shared)
    slots.stashes.assign(static_cast<std::size_t>(common),
                         static_cast<int>(largest - layers.begin()));
  assign_stashes(chunks, slots);
  return slots;
}

RankSlots slots_within(const RankSlots& planned, const PipelineSchedule& schedule, int rank) {
  const std::vector<ChunkIntervals> chunks = intervals_of(schedule, rank);
  RankSlots slots = slots_without_stashes(chunks, rank, planned.gradients);
  KINTSUGI_CHECK(slots.inputs <= planned.inputs && slots.gradients <= planned.gradients,
                 "{} micro-batches need {} inputs and {} gradients, {} and {} are planned",
                 schedule.shape.micro_batches, slots.inputs, slots.gradients, planned.inputs,
                 planned.gradients);
  slots.stashes = planned.stashes;
  slots.shared = planned.shared;
  assign_stashes(chunks, slots);
  return slots;
}

namespace {

std::vector<int> layers_of(const std::vector<StageLayers>& ranges) {
  std::vector<int> layers;
  for (const StageLayers& range : ranges) layers.push_back(range.last_layer - range.first_layer);
  return layers;
}

}  // namespace

bool save_same_tensors(const ModelLayers& model, const StageOptions& options,
                       const std::vector<StageLayers>& ranges) {
  if (options.offload_inputs) return false;  // chunks offload different blocks
  const auto size = [](const StageLayers& range) { return range.last_layer - range.first_layer; };
  const StageLayers& longest =
      *std::max_element(ranges.begin(), ranges.end(),
                        [&](const auto& a, const auto& b) { return size(a) < size(b); });
  return std::all_of(ranges.begin(), ranges.end(), [&](const StageLayers& range) {
    for (int i = 0; i < size(range); ++i)
      if (!model.save_same_tensors(range.first_layer + i, longest.first_layer + i)) return false;
    return options.recompute == Recompute::None ||
           range.first_layer % options.recompute_every ==
               ranges.front().first_layer % options.recompute_every;
  });
}

std::size_t OutputBuffers::write(int chunk, int micro_batch) {
  const std::pair name{chunk, micro_batch};
  for (auto& held : held_)
    if (held == name) held = {-1, -1};  // from the previous step
  last_ ^= 1;
  held_[last_] = name;
  return last_;
}

std::size_t OutputBuffers::find(int chunk, int micro_batch) const {
  const auto found = std::ranges::find(held_, std::pair{chunk, micro_batch});
  KINTSUGI_CHECK(found != held_.end(),
                 "the output of micro-batch {} of chunk {} was overwritten before it was sent",
                 micro_batch, chunk);
  return static_cast<std::size_t>(found - held_.begin());
}

Pipeline::Pipeline(Backend& backend, Arena& arena, StageScratch& scratch,
                   const std::vector<StageLayers>& ranges, const PipelineShape& shape,
                   Communicator& group, BucketHooks* hooks)
    : backend_(&backend), scratch_(&scratch), group_(&group), shape_(shape) {
  const DType dtype = scratch.context().store->dtype();
  const Shape size{scratch.size().rows(), scratch.model().hidden_size};
  PipelineSchedule schedule = make_pipeline_schedule(shape);
  planned_ = slots_of(schedule, group.rank(), layers_of(ranges),
                      save_same_tensors(scratch.layers(), scratch.options(), ranges));
  slots_ = planned_;
  actions_ = std::move(schedule.ranks[group.rank()]);
  std::vector<StageLayers> stashes;
  for (const int chunk : planned_.stashes) stashes.push_back(ranges[chunk]);
  const StageMemory memory = allocate_stage_memory(scratch, arena, planned_.inputs, stashes);
  const auto micro_batches = static_cast<std::size_t>(shape.micro_batches);
  for (std::size_t c = 0; c < ranges.size(); ++c) {
    Chunk chunk{.stage = Stage(scratch, arena, ranges[c], memory, planned_.chunks[c], hooks)};
    chunk.input_receives.resize(micro_batches);
    chunk.gradient_receives.resize(micro_batches);
    chunks_.push_back(std::move(chunk));
  }
  for (int i = 0; i < planned_.gradients; ++i)
    gradients_.push_back(
        {arena.allocate(Region::Workspace, "gradient of the residual stream", dtype, size)});
  // One buffer for the head's input; two if an output is sent while the next one is computed.
  const std::size_t outputs = ranges.size() == 1 && ranges[0].head ? 1 : outputs_.size();
  for (std::size_t i = 0; i < outputs; ++i)
    outputs_[i].buffer = arena.allocate(Region::Activations, "last block's output", dtype, size);
  if (outputs == 1) outputs_[1] = outputs_[0];
  batches_.resize(micro_batches);
}

void Pipeline::prepare(int micro_batches) {
  if (micro_batches == shape_.micro_batches) return;
  KINTSUGI_CHECK(micro_batches <= static_cast<int>(batches_.size()),
                 "a step of {} micro-batches in a pipeline built for {}", micro_batches,
                 batches_.size());
  PipelineShape shape = shape_;
  shape.micro_batches = micro_batches;
  PipelineSchedule schedule = make_pipeline_schedule(shape);
  slots_ = slots_within(planned_, schedule, group_->rank());
  for (std::size_t c = 0; c < chunks_.size(); ++c) chunks_[c].stage.use(slots_.chunks[c]);
  actions_ = std::move(schedule.ranks[group_->rank()]);
  shape_ = shape;
}

void Pipeline::run(const Step& step, const Load& load) {
  if (group_->size() == 1) return run_single_stage(step, load);
  prepare(step.micro_batches);
  std::ranges::fill(batches_, MicroBatch{});
  for (const Action& action : actions_) act(action, step, load);
  for (Outgoing& buffer : gradients_) reclaim(buffer);
  for (Outgoing& buffer : outputs_) reclaim(buffer);
}

// On one stage, forward and backward of a micro-batch follow each other.
void Pipeline::run_single_stage(const Step& step, const Load& load) {
  Chunk& chunk = chunks_.front();
  for (int number = 0; number < step.micro_batches; ++number) {
    batches_[0] = load(number);
    const auto compute = [&] {
      {
        const Phase phase(*backend_, [&] { return name_of({ActionKind::Forward, number, 0}, 1); });
        forward(0, 0, step);
      }
      const Phase phase(*backend_, [&] { return name_of({ActionKind::Backward, number, 0}, 1); });
      chunk.stage.backward(batch(0), 0, rows(gradient(0, 0).buffer, batch(0)));
    };
    if (batch(0).repeatable)
      backend_->replay(
          derive_key(static_cast<std::uint64_t>(batch(0).sequences),
                     std::uint64_t{batch(0).overwrites} + 2 * std::uint64_t{batch(0).first},
                     std::bit_cast<std::uint64_t>(batch(0).gradient_scale)),
          std::ref(compute));
    else
      compute();
  }
}

void Pipeline::act(const Action& action, const Step& step, const Load& load) {
  const auto number = static_cast<std::size_t>(action.micro_batch);
  Chunk& chunk = chunks_[action.chunk];
  const PipelineChunk own{group_->rank(), action.chunk};
  const auto finish = [&](std::vector<Communicator::Work>& receives) {
    group_->wait(std::exchange(receives[number], {}));
  };
  const bool is_first = action.chunk == 0 && (action.kind == ActionKind::ReceiveActivation ||
                                              action.kind == ActionKind::Forward);
  if (is_first && batches_[number].sequences == 0) batches_[number] = load(action.micro_batch);
  const MicroBatch& current = batches_[number];
  Outgoing& gradient = this->gradient(action.chunk, action.micro_batch);
  const auto name = [&] { return name_of(action, chunks_.size()); };
  switch (action.kind) {
    case ActionKind::ReceiveActivation:
      chunk.input_receives[number] = group_->receive(chunk.stage.input(current, action.micro_batch),
                                                     previous_chunk(shape_, own)->rank);
      break;
    case ActionKind::Forward: {
      finish(chunk.input_receives);
      const Phase phase(*backend_, name);
      forward(action.chunk, action.micro_batch, step);
      break;
    }
    case ActionKind::SendActivation:
      send(outputs_[output_buffers_.find(action.chunk, action.micro_batch)], current,
           next_chunk(shape_, own)->rank);
      break;
    case ActionKind::ReceiveGradient:
      reclaim(gradient);
      chunk.gradient_receives[number] =
          group_->receive(rows(gradient.buffer, current), next_chunk(shape_, own)->rank);
      break;
    case ActionKind::Backward: {
      finish(chunk.gradient_receives);
      const Phase phase(*backend_, name);
      chunk.stage.backward(current, action.micro_batch, rows(gradient.buffer, current));
      break;
    }
    case ActionKind::BackwardInput: {
      finish(chunk.gradient_receives);
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
      send(gradient, current, previous_chunk(shape_, own)->rank);
      break;
    case ActionKind::Reduce:  // the stages have called the hooks for each bucket
      break;
  }
}

void Pipeline::forward(int chunk_number, int number, const Step& step) {
  Chunk& chunk = chunks_[chunk_number];
  const MicroBatch& current = batch(number);
  Outgoing& output = outputs_[output_buffers_.write(chunk_number, number)];
  reclaim(output);
  const Tensor x = rows(output.buffer, current);
  chunk.stage.forward(current, number, x);
  if (!chunk.stage.range().head) return;
  Outgoing& gradient = this->gradient(chunk_number, number);
  if (current.gradient_scale != 0) reclaim(gradient);
  chunk.stage.loss(current, x, rows(gradient.buffer, current), step.loss_sum);
}

void Pipeline::send(Outgoing& from, const MicroBatch& batch, int to) {
  from.sending = group_->send(rows(from.buffer, batch), to);
}

void Pipeline::evaluate(const Step& step, const Load& load, const UseLosses& use) {
  for (int number = 0; number < step.micro_batches; ++number) {
    batches_[0] = load(number);
    batches_[0].scored_only = true;
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const PipelineChunk own{group_->rank(), static_cast<int>(c)};
      if (const auto from = previous_chunk(shape_, own))
        group_->wait(group_->receive(chunks_[c].stage.input(batch(0), 0), from->rank));
      {
        const Phase phase(*backend_, [&] { return fmt::format("evaluate {}", number); });
        forward(own.chunk, 0, step);
      }
      if (const auto to = next_chunk(shape_, own))
        send(outputs_[output_buffers_.find(own.chunk, 0)], batch(0), to->rank);
    }
    const std::int64_t tokens = batch(0).tokens();
    if (use && is_last()) use(scratch_->losses(tokens), scratch_->smallest_losses(tokens), number);
  }
  for (Outgoing& buffer : outputs_) reclaim(buffer);
}

}  // namespace kintsugi
