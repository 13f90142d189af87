#include "simulate/step/traffic.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

namespace kintsugi {
namespace {

// Adds up the messages between the GPUs of two nodes.
class Messages {
 public:
  Messages(const StepReplay& replay, RankRange ranks) : replay_(replay), gpus_(replay.node.gpus) {
    // A node with all its ranks, if there is one.
    const std::int64_t full = (ranks.first + gpus_ - 1) / gpus_;
    shown_node_ = (full + 1) * gpus_ <= ranks.end ? full : ranks.first / gpus_;
  }

  // Those of one sender are added one after the other.
  void add(std::int64_t from, std::int64_t to, double bytes) {
    if (from == to || bytes <= 0) return;
    const auto source = static_cast<int>(from / gpus_), target = static_cast<int>(to / gpus_);
    if (source == target) return add_inside(from, to, bytes);
    Sum& sum = between_[{source, target}];
    sum.bytes += bytes;
    if (sum.last_sender != from) ++sum.senders;
    sum.last_sender = from;
  }

  Traffic traffic(double hops) const {
    Traffic traffic;
    for (const auto& [nodes, sum] : between_)
      traffic.network.push_back({nodes.first, nodes.second, sum.bytes,
                                 static_cast<double>(sum.senders) * replay_.network.gb_s});
    for (const auto& [gpus, bytes] : inside_)
      traffic.inside.push_back({gpus.first, gpus.second, bytes});
    const double hop_us = between_.empty() ? replay_.node.latency_us : replay_.network.latency_us;
    if (!inside_.empty() || !between_.empty()) traffic.latency_s = hops * hop_us * 1e-6;
    return traffic;
  }

 private:
  void add_inside(std::int64_t from, std::int64_t to, double bytes) {
    if (from / gpus_ == shown_node_)
      inside_[{static_cast<int>(from % gpus_), static_cast<int>(to % gpus_)}] += bytes;
  }

  struct Sum {
    double bytes = 0;
    std::int64_t senders = 0, last_sender = -1;
  };
  const StepReplay& replay_;
  std::int64_t gpus_, shown_node_;
  std::map<std::pair<int, int>, Sum> between_;
  std::map<std::pair<int, int>, double> inside_;
};

// A rank's group, and the ranks of the group on its node.
struct Place {
  std::int64_t size, stride, position, leader, per_node;

  Place(const StepReplay& replay, const StepReplay::Group& group, std::int64_t rank)
      : size(group.size),
        stride(group.stride),
        position(rank / stride % size),
        leader(rank - position * stride),
        per_node(std::clamp<std::int64_t>(replay.node.gpus / stride, 1, size)) {
    if (size % per_node != 0) per_node = 1;
  }
  std::int64_t rank(std::int64_t at) const { return leader + (at + size) % size * stride; }
};

bool is_inside(const StepReplay& replay, std::int64_t rank) { return rank < replay.ranks; }

// As many rings as the group has ranks on a node, each with its part of the bytes: each leaves the
// node through the adapter of another GPU.
void add_rings(Messages& messages, const StepReplay& replay, const Place& p, double bytes) {
  const std::int64_t node = p.position / p.per_node, place = p.position % p.per_node;
  for (std::int64_t ring = 0; ring < p.per_node; ++ring) {
    // Ring r visits the GPUs of a node in the order r + 1, r + 2, …, r, and goes on at r + 1.
    const std::int64_t next = (place + 1) % p.per_node;
    const std::int64_t to = p.rank((place == ring ? node + 1 : node) * p.per_node + next);
    if (is_inside(replay, to))
      messages.add(p.rank(p.position), to, bytes / static_cast<double>(p.per_node));
  }
}

// To each rank of the node, and to the rank at the same place on each other node what is for that
// node: as many bytes enter and leave each adapter as if it were sent directly.
void add_exchange(Messages& messages, const StepReplay& replay, const Place& p, double bytes) {
  const std::int64_t node = p.position / p.per_node, place = p.position % p.per_node;
  for (std::int64_t other = 0; other < p.per_node; ++other)
    messages.add(p.rank(p.position), p.rank(node * p.per_node + other), bytes);
  for (std::int64_t other = 0; other < p.size / p.per_node; ++other) {
    const std::int64_t to = p.rank(other * p.per_node + place);
    if (other != node && is_inside(replay, to))
      messages.add(p.rank(p.position), to, bytes * static_cast<double>(p.per_node));
  }
}

}  // namespace

Traffic ring_traffic(const StepReplay& replay, const StepReplay::Call& call, RankRange ranks) {
  const StepReplay::Group& group = replay.groups[call.group];
  if (group.size == 1) return {};
  Messages messages(replay, ranks);
  const double n = static_cast<double>(group.size);
  double hops = n - 1, bytes = (n - 1) / n * call.bytes;
  if (call.kind == Collective::AllReduce) hops *= 2, bytes *= 2;
  if (is_message(call.kind)) hops = 1, bytes = call.bytes;
  if (call.kind == Collective::Broadcast) hops = 2 * std::log2(n), bytes = call.bytes;
  if (call.kind == Collective::Barrier) hops = 2 * std::log2(n), bytes = 1;
  if (call.kind == Collective::AllToAll) hops = 1, bytes = call.bytes / n;
  for (std::int64_t rank = ranks.first; rank < ranks.end; ++rank) {
    Place place(replay, group, rank);
    if (call.kind == Collective::AllToAll) {
      add_exchange(messages, replay, place, bytes);
      continue;
    }
    if (is_message(call.kind)) place.per_node = 1;  // one neighbour
    if (is_message(call.kind) && is_inside(replay, place.rank(place.position + 1)))
      messages.add(rank, place.rank(place.position + 1), bytes);
    if (!is_message(call.kind)) add_rings(messages, replay, place, bytes);
  }
  return messages.traffic(hops);
}

// A step and its counterpart on the way back take the same time: they are one step of two hops.
std::vector<Traffic> logarithmic_traffic(const StepReplay& replay, const StepReplay::Call& call,
                                         RankRange ranks) {
  const StepReplay::Group& group = replay.groups[call.group];
  std::vector<Traffic> steps;
  if (call.kind != Collective::AllReduce) return steps;
  const bool halves = (group.size & (group.size - 1)) == 0;
  double bytes = call.bytes;
  for (std::int64_t distance = 1; distance < group.size; distance *= 2) {
    Messages messages(replay, ranks);
    if (halves) bytes /= 2;
    for (std::int64_t rank = ranks.first; rank < ranks.end; ++rank) {
      const Place place(replay, group, rank);
      if (!halves && place.position % (2 * distance) != distance) continue;
      const std::int64_t to = place.rank(place.position ^ distance);
      if (is_inside(replay, to)) messages.add(rank, to, 2 * bytes);
    }
    steps.push_back(messages.traffic(2));
  }
  return steps;
}

Traffic message_traffic(const StepReplay& replay, int from_stage, int to_stage) {
  const std::int64_t stage = replay.ranks / replay.pipeline.stages, gpus = replay.node.gpus;
  const std::int64_t first = from_stage * stage, target = to_stage * stage;
  Messages messages(replay, {first, first + stage});
  std::map<std::int64_t, NodeFlow> inside;
  for (std::int64_t i = 0; i < stage; ++i) {
    const std::int64_t from = first + i, to = target + i, node = from / gpus;
    messages.add(from, to, replay.message_bytes);
    if (node != to / gpus) continue;
    const std::int64_t module = replay.node.module_gpus;
    inside[node] = {static_cast<int>(node), static_cast<int>(node), replay.message_bytes,
                    from / module == to / module ? replay.node.module_gb_s : replay.node.link_gb_s};
  }
  Traffic traffic = messages.traffic(1);
  traffic.inside.clear();
  for (const auto& [node, flow] : inside) traffic.network.push_back(flow);
  return traffic;
}

}  // namespace kintsugi
