#include "simulate/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {

namespace sg = simgrid::s4u;

namespace {

constexpr unsigned kNodesOfSwitch = 16;  // of a leaf of the fat tree
constexpr unsigned kNodesOfRouter = 8;
constexpr unsigned kRouters = 16;  // of a dragonfly's group, at least
// Of what a group can send, to all other groups together. Frontier and LUMI have about half.
constexpr double kGlobalShare = 0.5;
constexpr double kUnlimited = 1e18;

struct DragonflyShape {
  unsigned routers = kRouters, groups = 1, global_links = 1;  // links in units of a node's adapters
};

// A group has as many routers as there are groups, so that each pair of groups has a link.
DragonflyShape dragonfly_shape(unsigned nodes) {
  DragonflyShape shape;
  const auto groups = [&] {
    const unsigned of_group = shape.routers * kNodesOfRouter;
    return (nodes + of_group - 1) / of_group;
  };
  while (groups() > shape.routers) shape.routers *= 2;
  shape.groups = groups();
  if (shape.groups > 1)
    shape.global_links = std::max(1u, static_cast<unsigned>(kGlobalShare * shape.routers *
                                                            kNodesOfRouter / (shape.groups - 1)));
  return shape;
}

std::uint64_t whole_bytes(double bytes) {
  return static_cast<std::uint64_t>(std::max(1.0, std::round(bytes)));
}

}  // namespace

NetworkKind parse_network_kind(const std::string& name) {
  if (name == "fat-tree") return NetworkKind::FatTree;
  if (name == "dragonfly") return NetworkKind::Dragonfly;
  user_error("there is no network '{}': give fat-tree or dragonfly", name);
}

std::string to_string(NetworkKind kind) {
  return kind == NetworkKind::FatTree ? "fat-tree" : "dragonfly";
}

Network::Network(const StepReplay& replay, NetworkKind kind) : replay_(replay) {
  sg::NetZone* root = sg::create_full_zone("root");
  make_nodes(root, kind);
  make_gpus(root);
  root->seal();
}

// A node is one host, which sends with all its adapters together.
void Network::make_nodes(sg::NetZone* root, NetworkKind kind) {
  const NodeSpec& node = replay_.node;
  const auto used = static_cast<unsigned>((replay_.ranks + node.gpus - 1) / node.gpus);
  const double bytes_s =
      used > 1 ? static_cast<double>(node.gpus) * replay_.network.gb_s * 1e9 : 1e9;
  const auto host = [&](sg::NetZone* zone, const std::vector<unsigned long>&, unsigned long id) {
    nodes_.push_back(zone->create_host(fmt::format("node{}", id), 1e9)->seal());
    return std::pair(nodes_.back()->get_netpoint(),
                     static_cast<simgrid::kernel::routing::NetPoint*>(nullptr));
  };
  const auto inside = [&](sg::NetZone* zone, const std::vector<unsigned long>&, unsigned long id) {
    return zone->create_link(fmt::format("inside{}", id), kUnlimited)
        ->set_sharing_policy(sg::Link::SharingPolicy::FATPIPE)
        ->seal();
  };
  const sg::ClusterCallbacks make(host, inside, nullptr);
  const auto policy = sg::Link::SharingPolicy::SPLITDUPLEX;
  if (kind == NetworkKind::Dragonfly) {
    const DragonflyShape shape = dragonfly_shape(used);
    sg::create_dragonfly_zone("nodes", root,
                              {{shape.groups, shape.global_links},
                               {1, 1},
                               {shape.routers, kNodesOfRouter},
                               kNodesOfRouter},
                              make, bytes_s, 0, policy)
        ->seal();
    text_ = fmt::format("a dragonfly of {}, {} in a group", format_number(used, "node"),
                        shape.routers * kNodesOfRouter);
    return;
  }
  const unsigned leaves = (used + kNodesOfSwitch - 1) / kNodesOfSwitch;
  const sg::FatTreeParams one_switch(1, {std::max(2u, used)}, {1}, {1});
  const sg::FatTreeParams two_levels(2, {kNodesOfSwitch, leaves}, {1, kNodesOfSwitch}, {1, 1});
  sg::create_fatTree_zone("nodes", root, leaves == 1 ? one_switch : two_levels, make, bytes_s, 0,
                          policy)
      ->seal();
  text_ = fmt::format("a fat tree of {}, {} on a switch", format_number(used, "node"),
                      leaves == 1 ? used : kNodesOfSwitch);
}

// Each GPU has a port to those of its module and one to the others.
void Network::make_gpus(sg::NetZone* root) {
  const NodeSpec& node = replay_.node;
  sg::NetZone* zone = sg::create_full_zone("gpus");
  zone->set_parent(root);
  std::vector<std::array<sg::Link*, 2>> out, in;  // to the module, to others
  const auto ports = [&](const std::string& name) {
    const auto port = [&](const char* to, double gb_s) {
      return zone
          ->create_link(name + to, gb_s > 0 ? gb_s * 1e9 : kUnlimited)

          ->seal();
    };
    return std::array{port(" module", node.module_gb_s), port(" others", node.link_gb_s)};
  };
  for (int gpu = 0; gpu < node.gpus; ++gpu) {
    gpus_.push_back(zone->create_host(fmt::format("gpu{}", gpu), 1e9)->seal());
    out.push_back(ports(fmt::format("out{}", gpu)));
    in.push_back(ports(fmt::format("in{}", gpu)));
  }
  for (std::size_t a = 0; a < gpus_.size(); ++a)
    for (std::size_t b = 0; b < gpus_.size(); ++b) {
      const auto module = static_cast<std::size_t>(node.module_gpus);
      const std::size_t port = a / module == b / module ? 0 : 1;
      if (a == b) continue;
      const std::vector<sg::LinkInRoute> route = {sg::LinkInRoute(out[a][port]),
                                                  sg::LinkInRoute(in[b][port])};
      zone->add_route(gpus_[a]->get_netpoint(), gpus_[b]->get_netpoint(), nullptr, nullptr, route,
                      false);
    }
  zone->seal();
}

Network::Flows Network::start(const std::vector<NodeFlow>& flows, double scale) {
  Flows started;
  double least_s = 0;
  for (const NodeFlow& flow : flows) {
    const double bytes = flow.bytes * scale;
    started.messages.push_back(
        sg::Comm::sendto_async(nodes_.at(static_cast<std::size_t>(flow.from)),
                               nodes_.at(static_cast<std::size_t>(flow.to)), whole_bytes(bytes)));
    least_s = std::max(least_s, bytes / (flow.gb_s * 1e9));
  }
  started.least_end_s = sg::Engine::get_clock() + least_s;
  flows_ += static_cast<std::int64_t>(flows.size());
  return started;
}

Network::Flows Network::start(const std::vector<GpuFlow>& flows) {
  Flows started;
  for (const GpuFlow& flow : flows)
    started.messages.push_back(sg::Comm::sendto_async(gpus_.at(static_cast<std::size_t>(flow.from)),
                                                      gpus_.at(static_cast<std::size_t>(flow.to)),
                                                      whole_bytes(flow.bytes)));
  flows_ += static_cast<std::int64_t>(flows.size());
  return started;
}

void Network::wait(const Flows& flows) {
  sg::Comm::wait_all(flows.messages);
  const double left_s = flows.least_end_s - sg::Engine::get_clock();
  if (left_s > 0) sg::this_actor::sleep_for(left_s);
}

double Network::Flows::end_s() const {
  double end = least_end_s;
  for (const sg::CommPtr& message : messages) end = std::max(end, message->get_finish_time());
  return end;
}

}  // namespace kintsugi
