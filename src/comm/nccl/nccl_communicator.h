#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/nccl/library.h"
#include "comm/nccl/watch.h"

namespace kintsugi::nccl {

// Shared by all groups of a world.
struct NcclContext {
  std::shared_ptr<const Library> nccl;
  Backend& backend;
  gpu::Stream compute;  // the backend's stream
  Watch& watch;
  void* scratch;  // a few bytes of GPU memory
  bool register_buffers;
};

struct GroupInfo {
  std::string name;
  std::string id;                      // unique in this world: "dp#4"
  std::vector<int> members;            // world ranks
  std::unique_ptr<Communicator> host;  // the same ranks, for host memory
};

class NcclCommunicator : public Communicator {
 public:
  // Takes ownership of `comm`.
  NcclCommunicator(const NcclContext& context, GroupInfo info, Comm comm);
  ~NcclCommunicator() override;

  Work start(const Call& call) override;
  void wait(Work work) override;
  void barrier() override;
  std::shared_ptr<void> register_memory(Tensor x) override;
  CommunicationTimes times() const override;

  // All ranks call it: connects the neighbours of the ring for messages.
  void connect_ring();

 private:
  struct Edge {
    int peer;
    bool outgoing;
    auto operator<=>(const Edge&) const = default;
  };

  void issue(const Call& call, const Lane& lane);
  void issue_exchange(const Call& call, const Lane& lane);
  const std::shared_ptr<Lane>& lane_of(Edge edge);
  void connect(const std::vector<Edge>& edges);
  void close();

  const NcclContext context_;
  GroupInfo info_;
  const int exceptions_;
  std::shared_ptr<CommunicationTimes> times_ = std::make_shared<CommunicationTimes>();
  std::shared_ptr<Lane> lane_;                   // for collectives
  std::map<Edge, std::shared_ptr<Lane>> edges_;  // for messages
  std::int64_t tickets_ = 0;
  std::map<std::int64_t, std::shared_ptr<nccl::Call>> pending_;
};

}  // namespace kintsugi::nccl
