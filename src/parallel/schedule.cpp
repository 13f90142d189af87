#include "parallel/schedule.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "core/error.h"

namespace kintsugi {
namespace {

// A schedule is held in memory and drawn; what is larger is a slip of the finger.
constexpr std::int64_t kMostPasses = 200'000;

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

void check(const PipelineShape& shape) {
  if (shape.stages < 1) user_error("stages is {}: it must be 1 or more", shape.stages);
  if (shape.micro_batches < 1)
    user_error("micro-batches is {}: it must be 1 or more", shape.micro_batches);
  if (shape.chunks < 1) user_error("chunks is {}: it must be 1 or more", shape.chunks);
  const double passes = 1.0 * shape.stages * shape.micro_batches * shape.chunks;
  if (passes > static_cast<double>(kMostPasses))
    user_error("{} stages of {} chunks with {} micro-batches are too many: at most {} in product",
               shape.stages, shape.chunks, shape.micro_batches, kMostPasses);
  if (shape.kind == PipelineKind::Interleaved)
    check_interleaved(shape);
  else if (shape.chunks > 1)
    user_error("chunks is {}, but {} has one per rank; only interleaved has more", shape.chunks,
               to_string(shape.kind));
}

// ---- the order of the passes of one rank

// Forwards that a rank runs ahead; from then on each is followed by a backward.
int warm_up(const PipelineShape& shape, int rank) {
  const int total = shape.micro_batches * shape.chunks;
  const int behind = shape.stages - 1 - rank;
  switch (shape.kind) {
    case PipelineKind::GPipe:
      return total - 1;
    case PipelineKind::Interleaved:  // as Megatron counts them
      return std::min(total, 2 * behind + (shape.chunks - 1) * shape.stages);
    default:
      return std::min(total, behind);
  }
}

// The n-th forward: as many micro-batches as there are stages pass a chunk before the next chunk
// has its turn, so that the first of them has just come round when it does.
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
  // Rank r holds r weight halves back: with them it keeps p micro-batches, as rank 0 does. Its
  // first gradients go out sooner for it, and the halves fill the wait at the end.
  const int held_back = split ? rank : 0;
  const auto weight_half = [&](int n) {
    order.push_back({ActionKind::BackwardWeight, backward_at(shape, n).micro_batch, 0});
  };
  for (int step = 0; step < total + warm; ++step) {
    if (step < total) order.push_back(forward_at(shape, step));
    if (step < warm) continue;
    order.push_back(backward_at(shape, step - warm));
    if (split && step - warm >= held_back) weight_half(step - warm - held_back);
  }
  if (split)
    for (int n = std::max(0, total - held_back); n < total; ++n) weight_half(n);
  return order;
}

// ---- messages

// Every rank's list is cut from one common list of events in the order of an ideal clock, in which
// a send and its receive are one event. A wait in a circle would be an event before itself.
struct Event {
  std::int64_t time;
  int phase;  // at the same time: messages, then reductions, then the passes that need them
  int rank;
  Action action;
};
enum Phase { kMessage, kReduce, kCompute };

std::int64_t nominal_time(ActionKind kind) { return kind == ActionKind::Backward ? 2 : 1; }

class IdealClock {
 public:
  IdealClock(const PipelineShape& shape, const std::vector<Order>& orders)
      : shape_(shape),
        orders_(orders),
        next_(orders.size(), 0),
        now_(orders.size(), 0),
        backwards_left_(orders.size(), std::vector<int>(shape.chunks, shape.micro_batches)) {
    const auto places = static_cast<std::size_t>(shape.stages) * shape.chunks;
    forward_end_.resize(places * shape.micro_batches, kNotYet);
    backward_end_.resize(places * shape.micro_batches, kNotYet);
  }

  std::vector<Event> events() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int rank = 0; rank < shape_.stages; ++rank)
        while (next_[rank] < orders_[rank].size() && step(rank)) progress = true;
    }
    for (int rank = 0; rank < shape_.stages; ++rank)
      KINTSUGI_CHECK(next_[rank] == orders_[rank].size(), "rank {} of a {} schedule is stuck", rank,
                     to_string(shape_.kind));
    return std::move(events_);
  }

 private:
  static constexpr std::int64_t kNotYet = -1;

  std::int64_t& end_of(std::vector<std::int64_t>& ends, PartPlace place, int micro_batch) {
    const auto part = static_cast<std::size_t>(place.chunk) * shape_.stages + place.rank;
    return ends[part * shape_.micro_batches + micro_batch];
  }

  // When what the action needs from another part of the model is there.
  std::int64_t ready(PartPlace here, const Action& action) {
    if (action.kind == ActionKind::BackwardWeight) return 0;
    const bool forward = action.kind == ActionKind::Forward;
    const std::optional<PartPlace> from =
        forward ? previous_place(shape_, here) : next_place(shape_, here);
    if (!from) return 0;
    return end_of(forward ? forward_end_ : backward_end_, *from, action.micro_batch);
  }

  bool step(int rank) {
    const Action& action = orders_[rank][next_[rank]];
    const PartPlace here{rank, action.chunk};
    const std::int64_t from = ready(here, action);
    if (from == kNotYet) return false;
    const std::int64_t start = std::max(now_[rank], from);
    now_[rank] = start + nominal_time(action.kind);
    events_.push_back({start, kCompute, rank, action});
    finish(here, action);
    ++next_[rank];
    return true;
  }

  void finish(PartPlace here, const Action& action) {
    const std::int64_t now = now_[here.rank];
    if (action.kind == ActionKind::Forward) {
      end_of(forward_end_, here, action.micro_batch) = now;
      send(ActionKind::SendActivation, here, next_place(shape_, here), action);
      return;
    }
    if (action.kind != ActionKind::BackwardWeight) {
      end_of(backward_end_, here, action.micro_batch) = now;
      send(ActionKind::SendGradient, here, previous_place(shape_, here), action);
      if (action.kind == ActionKind::BackwardInput) return;
    }
    if (--backwards_left_[here.rank][here.chunk] == 0)
      events_.push_back(
          {now, kReduce, here.rank, {ActionKind::Reduce, action.micro_batch, here.chunk}});
  }

  void send(ActionKind kind, PartPlace here, std::optional<PartPlace> to, const Action& action) {
    if (!to || to->rank == here.rank) return;  // a single rank hands over in its own memory
    events_.push_back(
        {now_[here.rank], kMessage, here.rank, {kind, action.micro_batch, here.chunk}});
  }

  const PipelineShape& shape_;
  const std::vector<Order>& orders_;
  std::vector<std::size_t> next_;
  std::vector<std::int64_t> now_;
  std::vector<std::vector<int>> backwards_left_;          // (rank, chunk)
  std::vector<std::int64_t> forward_end_, backward_end_;  // (part of the model, micro-batch)
  std::vector<Event> events_;
};

void append(PipelineSchedule& schedule, const Event& event) {
  schedule.ranks[event.rank].push_back(event.action);
  if (event.phase != kMessage) return;
  const bool activation = event.action.kind == ActionKind::SendActivation;
  const PartPlace here{event.rank, event.action.chunk};
  const PartPlace to =
      activation ? *next_place(schedule.shape, here) : *previous_place(schedule.shape, here);
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
  const auto found = std::find(kScheduleNames.begin(), kScheduleNames.end(), name);
  if (found == kScheduleNames.end())
    user_error("there is no schedule '{}': give gpipe, 1f1b, interleaved or zb-h1", name);
  return static_cast<PipelineKind>(found - kScheduleNames.begin());
}

std::optional<PartPlace> next_place(const PipelineShape& shape, PartPlace place) {
  if (place.rank + 1 < shape.stages) return PartPlace{place.rank + 1, place.chunk};
  if (place.chunk + 1 < shape.chunks) return PartPlace{0, place.chunk + 1};
  return std::nullopt;
}

std::optional<PartPlace> previous_place(const PipelineShape& shape, PartPlace place) {
  if (place.rank > 0) return PartPlace{place.rank - 1, place.chunk};
  if (place.chunk > 0) return PartPlace{shape.stages - 1, place.chunk - 1};
  return std::nullopt;
}

PipelineSchedule make_pipeline_schedule(const PipelineShape& shape) {
  check(shape);
  std::vector<Order> orders;
  for (int rank = 0; rank < shape.stages; ++rank) orders.push_back(compute_order(shape, rank));
  std::vector<Event> events = IdealClock(shape, orders).events();
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.phase < b.phase;
  });
  PipelineSchedule schedule{shape, std::vector<Order>(shape.stages)};
  for (const Event& event : events) append(schedule, event);
  return schedule;
}

}  // namespace kintsugi
