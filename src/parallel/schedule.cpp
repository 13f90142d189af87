#include "parallel/schedule.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "core/error.h"

namespace kintsugi {
namespace {

// A schedule is stored in memory and drawn; a larger one is a typo.
constexpr std::int64_t kMostActions = 200'000;

constexpr std::array<std::string_view, 4> kScheduleNames = {"gpipe", "1f1b", "interleaved",
                                                            "zb-h1"};
constexpr std::array<std::string_view, 9> kActionNames = {
    "forward",         "backward",         "backward_input",
    "backward_weight", "send_activation",  "receive_activation",
    "send_gradient",   "receive_gradient", "reduce"};

using Order = std::vector<Action>;

void check_interleaved(const PipelineShape& shape) {
  if (shape.chunks < 2)
    user_error("chunks is {}: an interleaved schedule needs 2 or more per rank (1f1b has one)",
               shape.chunks);
  const int beyond = shape.micro_batches % shape.stages;
  if (beyond == 0) return;
  const int below = shape.micro_batches - beyond;
  const int above = below + shape.stages;
  if (below == 0)
    user_error(
        "an interleaved schedule needs a multiple of {} micro-batches (the stages), not {}; the "
        "nearest is {}",
        shape.stages, shape.micro_batches, above);
  user_error(
      "an interleaved schedule needs a multiple of {} micro-batches (the stages), not {}; the "
      "nearest are {} and {}",
      shape.stages, shape.micro_batches, below, above);
}

// ---- the order of forwards and backwards of one rank

// The number of warm-up forwards of a rank; after them, each forward is followed by a backward.
int warm_up(const PipelineShape& shape, int rank) {
  const int total = shape.micro_batches * shape.chunks;
  const int later_stages = shape.stages - 1 - rank;
  switch (shape.kind) {
    case PipelineKind::GPipe:
      return total - 1;
    case PipelineKind::Interleaved:  // the same number as in Megatron
      return std::min(total, 2 * later_stages + (shape.chunks - 1) * shape.stages);
    default:
      return std::min(total, later_stages);
  }
}

// The n-th forward of a rank. A chunk runs `stages` micro-batches before the next chunk's turn; by
// then the first of them has passed through all other ranks.
Action forward_at(const PipelineShape& shape, int n) {
  const int round = shape.stages * shape.chunks;
  if (shape.chunks == 1) return {ActionKind::Forward, n, 0};
  return {ActionKind::Forward, n / round * shape.stages + n % shape.stages,
          n % round / shape.stages};
}

Action backward_at(const PipelineShape& shape, int n) {
  Action action = forward_at(shape, n);
  const bool split = shape.kind == PipelineKind::ZeroBubbleH1;
  action.kind = split ? ActionKind::BackwardInput : ActionKind::Backward;
  action.chunk = shape.chunks - 1 - action.chunk;
  return action;
}

Order compute_order(const PipelineShape& shape, int rank) {
  Order order;
  const int total = shape.micro_batches * shape.chunks;
  const int warm = warm_up(shape, rank);
  const bool split = shape.kind == PipelineKind::ZeroBubbleH1;
  // Rank r delays r weight halves, so that it stashes as many micro-batches as rank 0. Its first
  // gradients are sent sooner, and the delayed halves fill the bubble at the end.
  const int delayed = split ? rank : 0;
  const auto weight_half = [&](int n) {
    order.push_back({ActionKind::BackwardWeight, backward_at(shape, n).micro_batch, 0});
  };
  for (int step = 0; step < total + warm; ++step) {
    if (step < total) order.push_back(forward_at(shape, step));
    if (step < warm) continue;
    order.push_back(backward_at(shape, step - warm));
    if (split && step - warm >= delayed) weight_half(step - warm - delayed);
  }
  if (split)
    for (int n = std::max(0, total - delayed); n < total; ++n) weight_half(n);
  return order;
}

// ---- time

// Executes the compute actions of all ranks, each as soon as its rank is free and its input is
// there. `duration(rank, action)` is its time, `done(own, action, start, end)` is called for each
// one.
template <class Duration, class Done>
class ScheduleClock {
 public:
  ScheduleClock(const PipelineShape& shape, const std::vector<Order>& orders, double message,
                const Duration& duration, const Done& done)
      : shape_(shape),
        orders_(orders),
        message_(message),
        duration_(duration),
        done_(done),
        next_(orders.size(), 0),
        now_(orders.size(), 0) {
    const auto chunks = static_cast<std::size_t>(shape.stages) * shape.chunks;
    forward_end_.resize(chunks * shape.micro_batches, kNotYet);
    backward_end_.resize(chunks * shape.micro_batches, kNotYet);
  }

  // The end of the last action.
  double run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int rank = 0; rank < shape_.stages; ++rank)
        while (next_[rank] < orders_[rank].size() && step(rank)) progress = true;
    }
    for (int rank = 0; rank < shape_.stages; ++rank)
      KINTSUGI_CHECK(next_[rank] == orders_[rank].size(), "rank {} of a {} schedule is stuck", rank,
                     to_string(shape_.kind));
    return *std::ranges::max_element(now_);
  }

 private:
  static constexpr double kNotYet = -1;

  double& end_of(std::vector<double>& ends, PipelineChunk from, int micro_batch) {
    const auto number = static_cast<std::size_t>(from.chunk) * shape_.stages + from.rank;
    return ends[number * shape_.micro_batches + micro_batch];
  }

  // The time at which the action's input from another chunk is there.
  double ready(PipelineChunk own, const Action& action) {
    if (action.kind == ActionKind::BackwardWeight) return 0;
    const bool forward = action.kind == ActionKind::Forward;
    const std::optional<PipelineChunk> from =
        forward ? previous_chunk(shape_, own) : next_chunk(shape_, own);
    if (!from) return 0;
    const double end = end_of(forward ? forward_end_ : backward_end_, *from, action.micro_batch);
    return end == kNotYet || from->rank == own.rank ? end : end + message_;
  }

  bool step(int rank) {
    const Action& action = orders_[rank][next_[rank]];
    const PipelineChunk own{rank, action.chunk};
    const double from = ready(own, action);
    if (from == kNotYet) return false;
    const double start = std::max(now_[rank], from);
    now_[rank] = start + duration_(rank, action);
    if (action.kind != ActionKind::BackwardWeight)
      end_of(action.kind == ActionKind::Forward ? forward_end_ : backward_end_, own,
             action.micro_batch) = now_[rank];
    done_(own, action, start, now_[rank]);
    ++next_[rank];
    return true;
  }

  const PipelineShape& shape_;
  const std::vector<Order>& orders_;
  const double message_;
  const Duration& duration_;
  const Done& done_;
  std::vector<std::size_t> next_;
  std::vector<double> now_;
  std::vector<double> forward_end_, backward_end_;  // (chunk in layer order, micro-batch)
};

std::vector<Order> compute_orders(const PipelineShape& shape) {
  std::vector<Order> orders;
  for (int rank = 0; rank < shape.stages; ++rank) orders.push_back(compute_order(shape, rank));
  return orders;
}

// ---- messages

// Every rank's list of actions is taken from one list of events in the order of an ideal clock, in
// which a send and its receive are one event. This order rules out cyclic waits, that is,
// deadlocks.
struct Event {
  double time;
  int phase;  // order of events at the same time: messages, reductions, compute
  int rank;
  Action action;
};
enum Phase { kMessage, kReduce, kCompute };

double nominal_time(int, const Action& action) {
  return action.kind == ActionKind::Backward ? 2 : 1;
}

class Events {
 public:
  explicit Events(const PipelineShape& shape)
      : shape_(shape),
        backwards_left_(shape.stages, std::vector<int>(shape.chunks, shape.micro_batches)) {}

  std::vector<Event> list() {
    const auto add = [this](PipelineChunk own, const Action& action, double start, double end) {
      events_.push_back({start, kCompute, own.rank, action});
      finish(own, action, end);
    };
    ScheduleClock(shape_, compute_orders(shape_), 0, nominal_time, add).run();
    return std::move(events_);
  }

 private:
  void finish(PipelineChunk own, const Action& action, double end) {
    if (action.kind == ActionKind::Forward)
      return send(ActionKind::SendActivation, own, next_chunk(shape_, own), action, end);
    if (action.kind != ActionKind::BackwardWeight) {
      send(ActionKind::SendGradient, own, previous_chunk(shape_, own), action, end);
      if (action.kind == ActionKind::BackwardInput) return;
    }
    if (--backwards_left_[own.rank][own.chunk] == 0)
      events_.push_back(
          {end, kReduce, own.rank, {ActionKind::Reduce, action.micro_batch, own.chunk}});
  }

  void send(ActionKind kind, PipelineChunk own, std::optional<PipelineChunk> to,
            const Action& action, double end) {
    if (!to || to->rank == own.rank) return;  // the same rank needs no message
    events_.push_back({end, kMessage, own.rank, {kind, action.micro_batch, own.chunk}});
  }

  const PipelineShape& shape_;
  std::vector<std::vector<int>> backwards_left_;  // (rank, chunk)
  std::vector<Event> events_;
};

void append(PipelineSchedule& schedule, const Event& event) {
  schedule.ranks[event.rank].push_back(event.action);
  if (event.phase != kMessage) return;
  const bool activation = event.action.kind == ActionKind::SendActivation;
  const PipelineChunk own{event.rank, event.action.chunk};
  const PipelineChunk to =
      activation ? *next_chunk(schedule.shape, own) : *previous_chunk(schedule.shape, own);
  schedule.ranks[to.rank].push_back(
      {activation ? ActionKind::ReceiveActivation : ActionKind::ReceiveGradient,
       event.action.micro_batch, to.chunk});
}

}  // namespace

std::string_view to_string(ActionKind kind) { return kActionNames[static_cast<std::size_t>(kind)]; }

bool is_compute(ActionKind kind) { return kind <= ActionKind::BackwardWeight; }

bool is_send(ActionKind kind) {
  return kind == ActionKind::SendActivation || kind == ActionKind::SendGradient;
}

bool is_receive(ActionKind kind) {
  return kind == ActionKind::ReceiveActivation || kind == ActionKind::ReceiveGradient;
}

std::string_view to_string(PipelineKind kind) {
  return kScheduleNames[static_cast<std::size_t>(kind)];
}

PipelineKind parse_pipeline_kind(std::string_view name) {
  const auto found = std::ranges::find(kScheduleNames, name);
  if (found == kScheduleNames.end())
    user_error("there is no schedule '{}': give gpipe, 1f1b, interleaved or zb-h1", name);
  return static_cast<PipelineKind>(found - kScheduleNames.begin());
}

std::optional<PipelineChunk> next_chunk(const PipelineShape& shape, PipelineChunk from) {
  if (from.rank + 1 < shape.stages) return PipelineChunk{from.rank + 1, from.chunk};
  if (from.chunk + 1 < shape.chunks) return PipelineChunk{0, from.chunk + 1};
  return std::nullopt;
}

std::optional<PipelineChunk> previous_chunk(const PipelineShape& shape, PipelineChunk from) {
  if (from.rank > 0) return PipelineChunk{from.rank - 1, from.chunk};
  if (from.chunk > 0) return PipelineChunk{shape.stages - 1, from.chunk - 1};
  return std::nullopt;
}

void check_pipeline_shape(const PipelineShape& shape) {
  if (shape.stages < 1) user_error("stages is {}: it must be 1 or more", shape.stages);
  if (shape.micro_batches < 1)
    user_error("micro-batches is {}: it must be 1 or more", shape.micro_batches);
  if (shape.chunks < 1) user_error("chunks is {}: it must be 1 or more", shape.chunks);
  const double actions = 1.0 * shape.stages * shape.micro_batches * shape.chunks;
  if (actions > static_cast<double>(kMostActions))
    user_error("stages {} × chunks {} × micro-batches {} is too large: the product is at most {}",
               shape.stages, shape.chunks, shape.micro_batches, kMostActions);
  if (shape.kind == PipelineKind::Interleaved)
    check_interleaved(shape);
  else if (shape.chunks > 1)
    user_error("chunks is {}, but {} has one per rank: use interleaved for more", shape.chunks,
               to_string(shape.kind));
}

double schedule_s(const PipelineShape& shape, const ActionSeconds& seconds, double message_s) {
  const auto ignore = [](PipelineChunk, const Action&, double, double) {};
  return ScheduleClock(shape, compute_orders(shape), message_s, seconds, ignore).run();
}

PipelineSchedule make_pipeline_schedule(const PipelineShape& shape) {
  check_pipeline_shape(shape);
  std::vector<Event> events = Events(shape).list();
  std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.phase < b.phase;
  });
  PipelineSchedule schedule{shape, std::vector<Order>(shape.stages)};
  for (const Event& event : events) append(schedule, event);
  return schedule;
}

}  // namespace kintsugi
