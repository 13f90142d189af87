#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/rank_failure.h"
#include "core/trace.h"

namespace kintsugi {

// Whether this binary can drive several GPUs, with the library of their vendor: NVIDIA's NCCL, or
// AMD's RCCL, which is meant below too. The library is loaded when it is first used.
bool built_with_nccl();
std::string nccl_library_name();  // "NCCL" or "RCCL"
std::string
nccl_library_version();  // "2.21.5"; "not found" if it is not installed; empty: not built

struct NcclOptions {
  // A call that has started on this GPU and takes longer is a failure.
  double timeout_s = 600;
  // Allow NCCL to fall back to TCP between nodes if it finds no better network. TCP has about 5 %
  // of the speed, so it is an error by default.
  bool allow_sockets = false;
  // Allow several ranks on one GPU, for tests.
  bool share_gpu = false;
  // Register memory with NCCL (Communicator::register_memory).
  bool register_buffers = false;
  // Groups in which neighbours in a ring exchange messages. They connect when they are created. In
  // other groups the first message between two ranks blocks both hosts until both have called it.
  std::vector<std::string> message_groups = {"pp", "cp"};
  // Called once, from another thread, after all communicators have been aborted. The process should
  // exit, since its main thread may wait for a call that was aborted.
  std::function<void(const RankFailure&)> on_failure = {};
  Trace* trace = nullptr;  // optional: records every call
};

// The ranks of a host world, for tensors in GPU memory. Every call is queued on a stream of its
// group, after the backend's operations so far; wait() only queues, too. Messages between two ranks
// in one direction have their own stream and NCCL communicator, so they wait only for earlier
// messages. All ranks must call groups with common ranks in the same order.
// Calls must not be recorded in graphs (Backend::replay): NCCL could not free a communicator
// while a graph uses it.
class NcclWorld : public World {
 public:
  // All ranks construct it. Throws UserError if NCCL is not installed, if two ranks use the same
  // GPU, or if NCCL uses TCP between nodes. The arguments must outlive it.
  NcclWorld(World& hosts, Backend& backend, NcclOptions options);
  ~NcclWorld() override;

  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override;

  // "NCCL 2.28.9, network IB; NCCL_SOCKET_IFNAME=ib0"
  const std::string& description() const;
  // The network between nodes, "IB" or "Socket"; empty with one node, or if NCCL did not say.
  const std::string& network() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kintsugi
