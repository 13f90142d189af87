#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/nccl/watch.h"

namespace kintsugi::nccl {

// What the groups of a world share.
struct Surroundings {
  Backend& backend;
  cudaStream_t compute;  // the backend's stream
  Watch& watch;
  void* scratch;  // a few bytes of GPU memory
  bool register_buffers;
};

// What a communicator is made of.
struct GroupParts {
  std::string name;
  std::string id;                      // unlike any other of this world: "dp#4"
  std::vector<int> members;            // the world's ranks
  std::unique_ptr<Communicator> host;  // the same ranks, on host memory
};

class NcclCommunicator : public Communicator {
 public:
  // Takes the NCCL communicator of the group.
  NcclCommunicator(const Surroundings& surroundings, GroupParts parts, ncclComm_t comm);
  ~NcclCommunicator() override;

  const std::string& name() const override { return parts_.name; }
  int rank() const override { return parts_.host->rank(); }
  int size() const override { return parts_.host->size(); }

  Work all_reduce(Tensor x, ReduceOp op) override;
  Work reduce_scatter(Tensor shard, Tensor full) override;
  Work all_gather(Tensor full, Tensor shard) override;
  Work broadcast(Tensor x, int root) override;
  Work send(Tensor x, int to) override;
  Work receive(Tensor x, int from) override;
  void wait(Work work) override;
  void barrier() override;
  std::shared_ptr<void> register_memory(Tensor x) override;
  CommunicationTimes times() const override;

  // Every rank calls it: makes the neighbours of the ring ready for messages.
  void connect_ring();

 private:
  struct Edge {
    int peer;
    bool outgoing;
    auto operator<=>(const Edge&) const = default;
  };

  template <class F>
  Work start(Collective kind, const std::shared_ptr<Lane>& lane, const Tensor& whole, F&& issue);
  const std::shared_ptr<Lane>& lane_of(Edge edge);
  void connect(const std::vector<Edge>& edges);
  void close();

  const Surroundings surroundings_;
  GroupParts parts_;
  const int exceptions_;
  std::shared_ptr<CommunicationTimes> times_ = std::make_shared<CommunicationTimes>();
  std::shared_ptr<Lane> lane_;                   // of the collectives
  std::map<Edge, std::shared_ptr<Lane>> edges_;  // of the messages
  std::int64_t tickets_ = 0;
  std::map<std::int64_t, std::shared_ptr<Call>> pending_;
};

}  // namespace kintsugi::nccl
