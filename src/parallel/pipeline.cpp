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

// "forward 3", and the chunk where there are several: for a trace.
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
  return all;
}

// Which buffer each micro-batch of each chunk takes.
struct Buffers {
  int count = 0;
  std::vector<std::vector<int>> of;  // by chunk
};

// As few as are in use at a time, and `more`. Of those that are free, the one that has been so for
// the longest.
Buffers share(const std::vector<ChunkIntervals>& chunks, Intervals ChunkIntervals::*kind,
              int more = 0) {
  struct User {
    Interval interval;
    std::size_t chunk, micro_batch;
  };
  std::vector<User> users;
  Buffers buffers;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    buffers.of.emplace_back((chunks[c].*kind).size());
    for (const auto& [micro_batch, interval] : chunks[c].*kind)
      users.push_back({interval, c, static_cast<std::size_t>(micro_batch)});
  }
  std::sort(users.begin(), users.end(),
            [](const User& a, const User& b) { return a.interval.begin < b.interval.begin; });
  std::vector<int> until;
  const auto place = [&] {
    for (const User& user : users) {
      auto oldest = std::min_element(until.begin(), until.end());
      if (oldest == until.end() || *oldest >= user.interval.begin)
        oldest = until.insert(until.end(), -1);
      *oldest = user.interval.end;
      buffers.of[user.chunk][user.micro_batch] = static_cast<int>(oldest - until.begin());
    }
  };
  place();  // how many there must be
  until.assign(until.size() + static_cast<std::size_t>(more), -1);
  place();
  buffers.count = static_cast<int>(until.size());
  return buffers;
}

}  // namespace

RankSlots slots_of(const PipelineSchedule& schedule, int rank, const std::vector<int>& layers,
                   bool alike) {
  const std::vector<ChunkIntervals> chunks = intervals_of(schedule, rank);
  RankSlots slots;
  slots.chunks.resize(chunks.size());
  const Buffers inputs = share(chunks, &ChunkIntervals::inputs);
  slots.inputs = inputs.count;
  // One more where they are sent, so that the next can arrive meanwhile.
  const bool sends = rank > 0 || chunks.size() > 1;
  Buffers gradients = share(chunks, &ChunkIntervals::gradients, sends ? 1 : 0);
  slots.gradients = gradients.count;
  slots.gradient_of = std::move(gradients.of);
  int own_blocks = 0;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    const Buffers own = share({chunks[c]}, &ChunkIntervals::stashes);
    slots.chunks[c] = {.inputs = inputs.of[c],
                       .stashes = own.of[0],
                       .embeddings = own.of[0],
                       .weights = share({chunks[c]}, &ChunkIntervals::weights).of[0]};
    for (int& stash : slots.chunks[c].stashes) stash += static_cast<int>(slots.stashes.size());
    slots.stashes.insert(slots.stashes.end(), static_cast<std::size_t>(own.count),
                         static_cast<int>(c));
    own_blocks += own.count * layers[c];
  }
  // Chunks that take turns need fewer, if the largest is not much larger than the others.
  const Buffers common = share(chunks, &ChunkIntervals::stashes);
  const auto largest = std::max_element(layers.begin(), layers.end());
  if (alike && common.count * *largest < own_blocks) {
    slots.stashes.assign(static_cast<std::size_t>(common.count),
                         static_cast<int>(largest - layers.begin()));
    for (std::size_t c = 0; c < chunks.size(); ++c) slots.chunks[c].stashes = common.of[c];
  }
  return slots;
}

namespace {

std::vector<int> layers_of(const std::vector<StagePart>& parts) {
  std::vector<int> layers;
  for (const StagePart& part : parts) layers.push_back(part.last_layer - part.first_layer);
  return layers;
}

}  // namespace

bool keep_alike(const StageOptions& options, const std::vector<StagePart>& parts) {
  if (options.offload_inputs) return false;  // which ones depends on the stage
  return options.recompute == Recompute::None ||
         std::all_of(parts.begin(), parts.end(), [&](const StagePart& part) {
           return part.first_layer % options.recompute_every ==
                  parts.front().first_layer % options.recompute_every;
         });
}

std::size_t OutputTurns::write(int chunk, int micro_batch) {
  const std::pair name{chunk, micro_batch};
  for (auto& held : held_)
    if (held == name) held = {-1, -1};  // of the step before
  last_ ^= 1;
  held_[last_] = name;
  return last_;
}

std::size_t OutputTurns::holder(int chunk, int micro_batch) const {
  const std::pair wanted{chunk, micro_batch};
  const auto found = std::find(held_.begin(), held_.end(), wanted);
  KINTSUGI_CHECK(found != held_.end(),
                 "the output of micro-batch {} of chunk {} was written over before it was sent",
                 micro_batch, chunk);
  return static_cast<std::size_t>(found - held_.begin());
}

Pipeline::Pipeline(Backend& backend, Arena& arena, StageScratch& scratch,
                   const std::vector<StagePart>& parts, const PipelineShape& shape,
                   Communicator& group, BucketHooks* hooks)
    : backend_(&backend),
      scratch_(&scratch),
      group_(&group),
      schedule_(make_pipeline_schedule(shape)) {
  const DType dtype = scratch.context().store->dtype();
  const Shape size{scratch.size().rows(), scratch.model().hidden_size};
  const RankSlots slots =
      slots_of(schedule_, group.rank(), layers_of(parts), keep_alike(scratch.options(), parts));
  std::vector<StagePart> stashes;
  for (const int chunk : slots.stashes) stashes.push_back(parts[static_cast<std::size_t>(chunk)]);
  const StageMemory memory = allocate_stage_memory(scratch, arena, slots.inputs, stashes);
  const auto micro_batches = static_cast<std::size_t>(shape.micro_batches);
  for (std::size_t c = 0; c < parts.size(); ++c) {
    Chunk chunk{.stage = Stage(scratch, arena, parts[c], memory, slots.chunks[c], hooks)};
    chunk.gradient_of = slots.gradient_of[c];
    chunk.inputs_on_their_way.resize(micro_batches);
    chunk.gradients_on_their_way.resize(micro_batches);
    chunks_.push_back(std::move(chunk));
  }
  for (int i = 0; i < slots.gradients; ++i)
    gradients_.push_back(
        {arena.allocate(Region::Workspace, "gradient of the residual stream", dtype, size)});
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
  for (Outgoing& buffer : gradients_) reclaim(buffer);
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
        forward(0, 0, step);
      }
      const Phase phase(*backend_, [&] { return name_of({ActionKind::Backward, number, 0}, 1); });
      chunk.stage.backward(batch(0), 0, rows(gradient(chunk, 0).buffer, batch(0)));
    };
    if (batch(0).repeatable)
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
      forward(action.chunk, action.micro_batch, step);
      break;
    }
    case ActionKind::SendActivation:
      send(outputs_[turns_.holder(action.chunk, action.micro_batch)], current,
           next_place(schedule_.shape, here)->rank);
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

void Pipeline::forward(int chunk_number, int number, const Step& step) {
  Chunk& chunk = chunks_[static_cast<std::size_t>(chunk_number)];
  const MicroBatch& current = batch(number);
  Outgoing& output = outputs_[turns_.write(chunk_number, number)];
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
    batches_[0].scored_only = true;
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const PartPlace here{group_->rank(), static_cast<int>(c)};
      if (const auto from = previous_place(schedule_.shape, here))
        group_->wait(group_->receive(chunks_[c].stage.input(batch(0), 0), from->rank));
      forward(here.chunk, 0, forward_only);
      if (const auto to = next_place(schedule_.shape, here))
        send(outputs_[turns_.holder(here.chunk, 0)], batch(0), to->rank);
    }
  }
  for (Outgoing& buffer : outputs_) reclaim(buffer);
}

}  // namespace kintsugi
