#include "parallel/schedule_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace kintsugi {
namespace {

using Key = std::tuple<ActionKind, int, int>;
Key key_of(const Action& action) { return {action.kind, action.micro_batch, action.chunk}; }

struct Sent {
  Action action;
  double arrival;
};

// Messages from one rank to another, in the order of the sender's actions.
struct Channel {
  std::vector<Sent> sent;
  std::size_t received = 0;
};

struct Receipt {
  int from;
  std::size_t index;  // in the channel
};

double duration(ActionKind kind, const ActionTimes& times) {
  switch (kind) {
    case ActionKind::Forward:
      return times.forward;
    case ActionKind::Backward:
      return times.backward_input + times.backward_weight;
    case ActionKind::BackwardInput:
      return times.backward_input;
    case ActionKind::BackwardWeight:
      return times.backward_weight;
    default:
      return 0;
  }
}

class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const ActionTimes& times, Transport transport)
      : schedule_(schedule),
        shape_(schedule.shape),
        times_(times),
        transport_(transport),
        clock_(schedule.ranks.size(), 0),
        done_(schedule.ranks.size()),
        receipts_(schedule.ranks.size()) {
    timing_.spans.resize(schedule.ranks.size());
  }

  PipelineTiming run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int rank = 0; rank < shape_.stages; ++rank)
        while (current(rank) && step(rank)) progress = true;
    }
    for (int rank = 0; rank < shape_.stages && timing_.deadlock.empty(); ++rank)
      if (const Action* action = current(rank))
        timing_.deadlock = fmt::format("rank {} is blocked in {} of micro-batch {}, chunk {}", rank,
                                       to_string(action->kind), action->micro_batch, action->chunk);
    return std::move(timing_);
  }

 private:
  // Null if the rank has finished.
  const Action* current(int rank) const {
    const std::size_t position = timing_.spans[rank].size();
    const std::vector<Action>& actions = schedule_.ranks[rank];
    return position < actions.size() ? &actions[position] : nullptr;
  }

  void record(int rank, double start, double end) {
    done_[rank].insert(key_of(*current(rank)));
    timing_.spans[rank].push_back({start, end});
    clock_[rank] = end;
  }

  bool step(int rank) {
    const Action& action = *current(rank);
    if (is_compute(action.kind)) return compute(rank, action);
    if (is_send(action.kind)) return send(rank, action);
    if (is_receive(action.kind)) return receive(rank, action);
    record(rank, clock_[rank], clock_[rank]);
    return true;
  }

  // The other end of a message.
  PipelineChunk peer(int rank, const Action& action) const {
    const bool downstream =
        action.kind == ActionKind::SendActivation || action.kind == ActionKind::ReceiveGradient;
    const PipelineChunk own{rank, action.chunk};
    const std::optional<PipelineChunk> peer =
        downstream ? next_chunk(shape_, own) : previous_chunk(shape_, own);
    KINTSUGI_CHECK(peer.has_value(), "rank {} has a {} without a peer in the pipeline", rank,
                   to_string(action.kind));
    return *peer;
  }

  Action receive_of(int rank, const Action& send) const {
    return {send.kind == ActionKind::SendActivation ? ActionKind::ReceiveActivation
                                                    : ActionKind::ReceiveGradient,
            send.micro_batch, peer(rank, send).chunk};
  }

  bool send(int rank, const Action& action) {
    const PipelineChunk to = peer(rank, action);
    if (transport_ == Transport::Overlapped) {
      channels_[{rank, to.rank}].sent.push_back(
          {receive_of(rank, action), clock_[rank] + times_.message});
      record(rank, clock_[rank], clock_[rank]);
      return true;
    }
    const Action* other = current(to.rank);
    if (!other || *other != receive_of(rank, action)) return false;
    const double start = std::max(clock_[rank], clock_[to.rank]);
    record(rank, start, start + times_.message);
    record(to.rank, start, start + times_.message);
    return true;
  }

  bool receive(int rank, const Action& action) {
    if (transport_ == Transport::Blocking) return false;  // the sender advances both ranks
    const int from = peer(rank, action).rank;
    receipts_[rank][key_of(action)] = {from, channels_[{from, rank}].received++};
    record(rank, clock_[rank], clock_[rank]);
    return true;
  }

  bool compute(int rank, const Action& action) {
    const std::optional<double> ready = ready_time(rank, action);
    if (!ready) return false;
    const double start = std::max(clock_[rank], *ready);
    record(rank, start, start + duration(action.kind, times_));
    return true;
  }

  // The time at which the inputs of the action are there; none if they have not been computed yet.
  std::optional<double> ready_time(int rank, const Action& action) const {
    const PipelineChunk own{rank, action.chunk};
    const int micro_batch = action.micro_batch;
    if (action.kind == ActionKind::BackwardWeight)
      return finished(rank, {ActionKind::BackwardInput, micro_batch, action.chunk});
    if (action.kind == ActionKind::Forward)
      return input(own, previous_chunk(shape_, own),
                   {ActionKind::ReceiveActivation, micro_batch, action.chunk}, action);
    if (!finished(rank, {ActionKind::Forward, micro_batch, action.chunk})) return std::nullopt;
    return input(own, next_chunk(shape_, own),
                 {ActionKind::ReceiveGradient, micro_batch, action.chunk}, action);
  }

  std::optional<double> finished(int rank, const Action& earlier) const {
    if (!done_[rank].contains(key_of(earlier))) return std::nullopt;
    return 0;  // the rank's clock is already past it
  }

  std::optional<double> input(PipelineChunk own, std::optional<PipelineChunk> from,
                              const Action& receive, const Action& action) const {
    if (!from) return 0;
    if (from->rank == own.rank)
      return finished(own.rank, {action.kind, action.micro_batch, from->chunk});
    if (transport_ == Transport::Blocking) return finished(own.rank, receive);
    const auto receipt = receipts_[own.rank].find(key_of(receive));
    if (receipt == receipts_[own.rank].end()) return std::nullopt;
    const std::vector<Sent>& sent = channels_.at({receipt->second.from, own.rank}).sent;
    const std::size_t index = receipt->second.index;
    if (index >= sent.size() || sent[index].action != receive) return std::nullopt;
    return sent[index].arrival;
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  const ActionTimes times_;
  const Transport transport_;
  std::vector<double> clock_;
  std::vector<std::set<Key>> done_;
  std::vector<std::map<Key, Receipt>> receipts_;
  std::map<std::pair<int, int>, Channel> channels_;
  PipelineTiming timing_;
};

// A micro-batch is stashed from its forward to the end of its backward. If the backward is split,
// to the end of backward_weight, which still needs the layers' inputs.
int peak_live(const std::vector<Action>& actions) {
  int live = 0, peak = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::Forward) peak = std::max(peak, ++live);
    if (action.kind == ActionKind::Backward || action.kind == ActionKind::BackwardWeight) --live;
  }
  return peak;
}

}  // namespace

PipelineTiming simulate_pipeline(const PipelineSchedule& schedule, const ActionTimes& times,
                                 Transport transport) {
  PipelineTiming timing = Simulation(schedule, times, transport).run();
  double busy_sum = 0;
  std::vector<double> busy(schedule.ranks.size(), 0);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < timing.spans[rank].size(); ++i) {
      const Span& span = timing.spans[rank][i];
      if (!is_compute(schedule.ranks[rank][i].kind)) continue;
      busy[rank] += span.end - span.start;
      timing.makespan = std::max(timing.makespan, span.end);
    }
    busy_sum += busy[rank];
    timing.peak_live.push_back(peak_live(schedule.ranks[rank]));
  }
  for (const double time : busy) timing.idle.push_back(timing.makespan - time);
  const double area = timing.makespan * static_cast<double>(schedule.ranks.size());
  timing.bubble = area > 0 ? 1 - busy_sum / area : 0;
  return timing;
}

namespace {

// The shortest compute action: the unit of the drawing's grid.
double shortest_action(const PipelineSchedule& schedule, const PipelineTiming& timing) {
  double shortest = std::numeric_limits<double>::infinity();
  for (std::size_t rank = 0; rank < timing.spans.size(); ++rank)
    for (std::size_t i = 0; i < timing.spans[rank].size(); ++i)
      if (is_compute(schedule.ranks[rank][i].kind))
        shortest = std::min(shortest, timing.spans[rank][i].end - timing.spans[rank][i].start);
  return shortest;
}

// Calls draw(action, span) for every forward and backward of a rank.
void for_each_compute(const PipelineSchedule& schedule, const PipelineTiming& timing, int rank,
                      const auto& draw) {
  for (std::size_t i = 0; i < timing.spans[rank].size(); ++i) {
    const Action& action = schedule.ranks[rank][i];
    if (is_compute(action.kind)) draw(action, timing.spans[rank][i]);
  }
}

// ---- characters

char letter(const Action& action) {
  const bool lower = action.chunk % 2 == 1;
  switch (action.kind) {
    case ActionKind::Forward:
      return lower ? 'f' : 'F';
    case ActionKind::BackwardWeight:
      return lower ? 'w' : 'W';
    default:
      return lower ? 'b' : 'B';
  }
}

// The letter and number, or only the letter if there is no room.
std::string cell(const Action& action, int width) {
  std::string text = letter(action) + std::to_string(action.micro_batch);
  if (static_cast<int>(text.size()) > width) text.resize(1);
  text.resize(width, action.kind == ActionKind::Forward ? ' ' : '-');
  return text;
}

double columns_per_time(const PipelineSchedule& schedule, const PipelineTiming& timing,
                        int columns) {
  const double cell = shortest_action(schedule, timing);
  const double whole = std::floor(columns * cell / timing.makespan);
  return whole >= 1 ? whole / cell : columns / timing.makespan;
}

std::string text_legend(const PipelineSchedule& schedule) {
  std::string text = "F forward, B backward";
  if (schedule.shape.kind == PipelineKind::ZeroBubbleH1)
    text = "F forward, B backward of the inputs, W of the weights";
  if (schedule.shape.chunks > 1) text += ", capitals for even chunks and small letters for odd";
  return text + "; number of the micro-batch if it fits; . idle\n";
}

// ---- SVG

constexpr double kCellWidth = 22, kRowHeight = 26, kLeft = 64, kTop = 44;

std::string_view colour(const Action& action) {
  const bool odd = action.chunk % 2 == 1;
  switch (action.kind) {
    case ActionKind::Forward:
      return odd ? "#4a86c5" : "#a9c9ea";
    case ActionKind::BackwardWeight:
      return odd ? "#d9822b" : "#f6c48f";
    default:
      return odd ? "#5aa469" : "#b3dcb9";
  }
}

std::string rectangle(double x, double y, double width, double height, std::string_view fill) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
      "stroke=\"#555\" stroke-width=\"0.5\"/>\n",
      x, y, width, height, fill);
}

std::string label(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     text);
}

std::string svg_legend(const PipelineSchedule& schedule) {
  const bool split = schedule.shape.kind == PipelineKind::ZeroBubbleH1;
  struct Entry {
    ActionKind kind;
    std::string_view name;
  };
  std::vector<Entry> entries = {{ActionKind::Forward, "forward"}};
  if (split) {
    entries.push_back({ActionKind::BackwardInput, "backward, inputs"});
    entries.push_back({ActionKind::BackwardWeight, "backward, weights"});
  } else {
    entries.push_back({ActionKind::Backward, "backward"});
  }
  std::string text;
  double x = kLeft;
  for (const Entry& entry : entries)
    for (int chunk = 0; chunk < std::min(2, schedule.shape.chunks); ++chunk) {
      text += rectangle(x, 12, 14, 14, colour({entry.kind, 0, chunk}));
      const std::string_view which =
          schedule.shape.chunks == 1 ? "" : (chunk == 0 ? ", even chunks" : ", odd chunks");
      text += label(x + 20, 23, "start", fmt::format("{}{}", entry.name, which));
      x += 170;
    }
  return text;
}

}  // namespace

std::string draw_schedule(const PipelineSchedule& schedule, const PipelineTiming& timing,
                          int columns) {
  const int stages = schedule.shape.stages;
  const int digits = static_cast<int>(std::to_string(stages - 1).size());
  const int room = std::max(1, columns - digits - 8);  // "rank 3 |" and the bar at the end
  const double scale = columns_per_time(schedule, timing, room);
  const auto column = [&](double time) { return static_cast<int>(std::lround(time * scale)); };
  std::string text;
  for (int rank = 0; rank < stages; ++rank) {
    std::string row(column(timing.makespan), '.');
    for_each_compute(schedule, timing, rank, [&](const Action& action, const Span& span) {
      const int from = column(span.start), width = column(span.end) - from;
      if (width > 0) row.replace(from, width, cell(action, width));
    });
    text += fmt::format("rank {:>{}} |{}|\n", rank, digits, row);
  }
  return text + text_legend(schedule);
}

std::string schedule_svg(const PipelineSchedule& schedule, const PipelineTiming& timing) {
  const double scale = kCellWidth / shortest_action(schedule, timing);
  // At least as wide as the legend.
  const double width = std::max(kLeft + timing.makespan * scale + 20, kLeft + 4 * 170);
  const double height = kTop + schedule.shape.stages * kRowHeight + 20;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<title>{2}, {3} stages, {4} micro-batches</title>\n",
      width, height, to_string(schedule.shape.kind), schedule.shape.stages,
      schedule.shape.micro_batches);
  text += rectangle(0, 0, width, height, "#ffffff") + svg_legend(schedule);
  for (int rank = 0; rank < schedule.shape.stages; ++rank) {
    const double y = kTop + rank * kRowHeight;
    text += label(kLeft - 8, y + 16, "end", fmt::format("rank {}", rank));
    for_each_compute(schedule, timing, rank, [&](const Action& action, const Span& span) {
      const double x = kLeft + span.start * scale, wide = (span.end - span.start) * scale;
      text += rectangle(x, y, wide, kRowHeight - 4, colour(action));
      text += label(x + wide / 2, y + 15, "middle", std::to_string(action.micro_batch));
    });
  }
  return text + "</svg>\n";
}

}  // namespace kintsugi
