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

// Shared by all groups of a world.
struct NcclContext {
  Backend& backend;
  cudaStream_t compute;  // the backend's stream
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
  NcclCommunicator(const NcclContext& context, GroupInfo info, ncclComm_t comm);
  ~NcclCommunicator() override;

  const std::string& name() const override { return info_.name; }
  int rank() const override { return info_.host->rank(); }
  int size() const override { return info_.host->size(); }

  Work all_reduce(Tensor x, ReduceOp op) override;
  Work reduce_scatter(Tensor shard, Tensor full) override;
  Work all_gather(Tensor full, Tensor shard) override;
  Work broadcast(Tensor x, int root) override;
  Work all_to_all(Tensor received, Tensor sent, const ExchangeCounts& counts) override;
  Work send(Tensor x, int to) override;
  Work receive(Tensor x, int from) override;
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

  // Does nothing if the tensor is empty, which it is then on all ranks.
  template <class F>
  Work start(Collective kind, const std::shared_ptr<Lane>& lane, const Tensor& whole, F&& issue);
  template <class F>
  Work start_bytes(Collective kind, const std::shared_ptr<Lane>& lane, std::size_t bytes,
                   F&& issue);
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
  std::map<std::int64_t, std::shared_ptr<Call>> pending_;
};

}  // namespace kintsugi::nccl
