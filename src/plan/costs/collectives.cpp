#include "plan/costs/collectives.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace kintsugi {

namespace {

// Two groups share a node if their ranks do not fill their nodes.
std::int64_t fewest_on_a_node(std::int64_t size, std::int64_t per_node) {
  return size % per_node == 0 ? per_node : std::gcd(size, per_node);
}

}  // namespace

GroupLinks links_of(const Machine& machine, const GroupSpread& group) {
  const NodeSpec& node = machine.node;
  const std::int64_t span = group.size * group.stride;
  const std::int64_t per_node =  // ranks of the group on one node
      group.stride >= node.gpus ? 1
                                : std::clamp<std::int64_t>(node.gpus / group.stride, 1, group.size);
  GroupLinks links{.size = group.size, .nodes = (group.size + per_node - 1) / per_node};
  const double inside = span <= node.module_gpus ? node.module_gb_s : node.link_gb_s;
  links.inside_gb_s = inside;
  const double hop = node.latency_us;
  if (links.nodes <= 1) {
    links.gb_s = links.neighbour_gb_s = inside;
    links.ring_us = static_cast<double>(group.size - 1) * hop;
    links.tree_us = 2 * std::log2(std::max<double>(2, static_cast<double>(group.size))) * hop;
    links.neighbour_us = hop;
    return links;
  }
  const NetworkSpec& network = machine.network;
  const double nodes = static_cast<double>(links.nodes);
  const double crowd =
      network.crowded_nodes > 0 ? 1 + std::pow(nodes / network.crowded_nodes, network.crowding) : 1;
  // The ranks of a group on one node use their network adapters together: each has a ring that
  // leaves the node there, and of its bytes inside the node those of the other rings.
  links.across_gb_s = network.gb_s / crowd;
  const double rings = static_cast<double>(per_node);
  links.gb_s = links.across_gb_s * static_cast<double>(fewest_on_a_node(group.size, per_node));
  if (per_node > 1) links.gb_s = std::min(links.gb_s, inside * rings / (rings - 1));
  // All ranks of a ring advance in lockstep: every hop takes as long as the slowest.
  links.ring_us = static_cast<double>(group.size - 1) * network.latency_us;
  links.tree_us =
      2 * (std::log2(nodes) * network.latency_us + static_cast<double>(per_node - 1) * hop);
  // Some neighbours are on different nodes: the slowest link decides.
  links.neighbour_gb_s = network.gb_s;
  links.neighbour_us = network.latency_us;
  return links;
}

namespace {

// Each rank sends `bytes` to every other one, within its node and across the network at a time.
double all_to_all_s(const GroupLinks& links, double bytes) {
  const double n = static_cast<double>(links.size), nodes = static_cast<double>(links.nodes);
  const double inside_s = (n / nodes - 1) * bytes / (links.inside_gb_s * 1e9);
  if (links.nodes == 1) return inside_s;
  return std::max(inside_s, (n - n / nodes) * bytes / (links.across_gb_s * 1e9));
}

}  // namespace

double collective_s(const GroupLinks& links, Collective collective, double bytes) {
  if (links.size <= 1) return 0;
  const double n = static_cast<double>(links.size);
  const double ring_s = (n - 1) / n * bytes / (links.gb_s * 1e9);
  switch (collective) {
    case Collective::AllReduce:
      return std::min(2 * ring_s + 2 * links.ring_us * 1e-6,
                      2 * ring_s * 1.1 + links.tree_us * 1e-6);
    case Collective::ReduceScatter:
    case Collective::AllGather:
      return ring_s + links.ring_us * 1e-6;
    case Collective::Broadcast:
      return bytes / (links.gb_s * 1e9) + links.tree_us * 1e-6;
    case Collective::AllToAll:
      return all_to_all_s(links, bytes / n) + links.tree_us * 1e-6;
    case Collective::Send:
    case Collective::Receive:
      return bytes / (links.neighbour_gb_s * 1e9) + links.neighbour_us * 1e-6;
    case Collective::Barrier:
      return links.tree_us * 1e-6;
  }
  failure("no such collective");
}

}  // namespace kintsugi
