#pragma once

#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

#include "simulate/step/traffic.h"

namespace kintsugi {

enum class NetworkKind { FatTree, Dragonfly };
NetworkKind parse_network_kind(const std::string& name);  // UserError lists the names
std::string to_string(NetworkKind kind);

// The nodes of a job and the GPUs of one node in SimGrid, whose engine must exist. One per process.
// Its links have bandwidths; latencies are those of Traffic.
class Network {
 public:
  Network(const StepReplay& replay, NetworkKind kind);

  struct Flows {
    std::vector<simgrid::s4u::CommPtr> messages = {};
    double least_end_s = 0;  // by the rates of NodeFlow, which SimGrid does not limit
    double end_s() const;    // after wait(): of the last one
  };
  // Starts messages with `scale` times their bytes. Only actors may call these.
  Flows start(const std::vector<NodeFlow>& flows, double scale);
  Flows start(const std::vector<GpuFlow>& flows);
  static void wait(const Flows& flows);

  simgrid::s4u::Host* any_host() const { return nodes_.front(); }

  const std::string& text() const { return text_; }  // "a fat tree of 128 nodes, …"
  std::int64_t flows() const { return flows_; }      // that were started

 private:
  void make_nodes(simgrid::s4u::NetZone* root, NetworkKind kind);
  void make_gpus(simgrid::s4u::NetZone* root);

  const StepReplay& replay_;
  std::vector<simgrid::s4u::Host*> nodes_, gpus_;
  std::string text_;
  std::int64_t flows_ = 0;
};

}  // namespace kintsugi
