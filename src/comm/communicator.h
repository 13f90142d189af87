#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/collective.h"
#include "tensor/tensor.h"

namespace kintsugi {

enum class ReduceOp : std::uint8_t { Sum, Max };

// Counters of one communicator since its start. Communication that overlapped with other work took
// busy_s - waited_s.
struct CommunicationTimes {
  std::int64_t started = 0;
  std::int64_t finished = 0;
  std::int64_t bytes = 0;  // sent by this rank
  double busy_s = 0;       // with at least one call in flight
  double waited_s = 0;     // spent in wait() and barrier()
};

// What a rank sends to each rank of a group and receives from it, in elements.
struct ExchangeCounts {
  std::vector<std::int64_t> sent, received;  // by rank
};

// Collectives in one group of ranks. All ranks of a group call the same ones in the same order.
//
// Calls are asynchronous. A call starts after the operations queued on the backend so far, and
// operations queued after wait() see its result; do not access its tensors in between. Wait for
// every call exactly once, in any order. Tensors must be contiguous. A group of one rank only
// copies from source to destination if they differ.
class Communicator {
 public:
  struct Work {
    std::int64_t ticket = 0;  // 0: nothing to wait for
  };
  // One collective, or one message between two ranks.
  struct Call {
    Collective kind = Collective::Barrier;
    Tensor destination = {}, source = {};  // the same one if it works in place
    ReduceOp op = ReduceOp::Sum;
    int peer = -1;                           // the root, the receiver or the sender
    const ExchangeCounts* counts = nullptr;  // of an all_to_all; valid during the call

    // The largest tensor that all ranks have in common; for an all_to_all what is sent.
    const Tensor& whole() const {
      return kind == Collective::AllGather || kind == Collective::Receive ? destination : source;
    }
  };

  virtual ~Communicator() = default;
  const std::string& name() const { return name_; }  // "dp", "shard", …
  int rank() const { return rank_; }
  int size() const { return size_; }

  Work all_reduce(Tensor x, ReduceOp op = ReduceOp::Sum) {
    return check_and_start({Collective::AllReduce, x, x, op});
  }
  // shard (n) = this rank's n elements of the sum of full (n * size). shard may be this rank's
  // range of full.
  Work reduce_scatter(Tensor shard, Tensor full) {
    return check_and_start({Collective::ReduceScatter, shard, full});
  }
  // full (n * size) = the shards (n) of all ranks. shard may be this rank's range of full.
  Work all_gather(Tensor full, Tensor shard) {
    return check_and_start({Collective::AllGather, full, shard});
  }
  Work broadcast(Tensor x, int root) {
    return check_and_start({Collective::Broadcast, x, x, ReduceOp::Sum, root});
  }
  // Every rank sends counts.sent[r] elements to rank r. `sent` and `received` are in rank order,
  // without gaps.
  Work all_to_all(Tensor received, Tensor sent, const ExchangeCounts& counts) {
    return check_and_start({Collective::AllToAll, received, sent, ReduceOp::Sum, -1, &counts});
  }
  Work all_to_all(Tensor received, Tensor sent);  // the same number of elements to each rank
  Work send(Tensor x, int to) {
    return check_and_start({Collective::Send, {}, x, ReduceOp::Sum, to});
  }
  Work receive(Tensor x, int from) {
    return check_and_start({Collective::Receive, x, {}, ReduceOp::Sum, from});
  }

  // What implementations and decorators define. The operands of a call were checked. `start` is
  // not called for a barrier.
  virtual Work start(const Call& call) = 0;
  virtual void wait(Work work) = 0;
  virtual void barrier() = 0;  // blocks

  // Registers memory that many calls will use, so that the network can avoid copies. It stays
  // registered until the returned object is destroyed, which must happen before the group is.
  // Returns nothing if the implementation does not register memory.
  virtual std::shared_ptr<void> register_memory(Tensor x) {
    (void)x;
    return {};
  }
  // All zero if the implementation does not measure.
  virtual CommunicationTimes times() const { return {}; }

 protected:
  Communicator(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size) {}

  // As ring_bytes() counts them: of the whole tensor, or what an all_to_all sends to other ranks.
  std::size_t bytes_of(const Call& call) const;

 private:
  Work check_and_start(const Call& call) {
    check(call);
    return start(call);
  }
  void check(const Call& call) const;  // throws Failure
  void check_exchange(const Call& call) const;

  std::string name_;
  int rank_, size_;
};

// Forwards all calls. A decorator overrides those to which it adds something.
class ForwardingCommunicator : public Communicator {
 public:
  Work start(const Call& call) override { return inner_->start(call); }
  void wait(Work work) override { inner_->wait(work); }
  void barrier() override { inner_->barrier(); }
  std::shared_ptr<void> register_memory(Tensor x) override { return inner_->register_memory(x); }
  CommunicationTimes times() const override { return inner_->times(); }

 protected:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner)
      : Communicator(inner->name(), inner->rank(), inner->size()), inner_(std::move(inner)) {}

  std::unique_ptr<Communicator> inner_;
};

// All ranks of a job.
class World {
 public:
  // Of this rank.
  struct Place {
    int rank = 0, size = 1;
    int local_rank = 0, local_size = 1;  // within this node
  };

  virtual ~World() = default;
  const Place& place() const { return place_; }
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  int local_rank() const { return place_.local_rank; }
  int local_size() const { return place_.local_size; }

  // Makes a group of the ranks with the same color, ordered by key, like MPI_Comm_split. All ranks
  // call it, with no collective in flight. Groups must be destroyed before the world.
  virtual std::unique_ptr<Communicator> split(const std::string& name, int color, int key) = 0;

 protected:
  explicit World(const Place& place) : place_(place) {}
  Place place_;
};

// A world of one rank: collectives copy if source and destination differ. Tensors are in the
// memory of `backend`, or in host memory without one.
class LocalWorld : public World {
 public:
  explicit LocalWorld(Backend* backend = nullptr) : World(Place{}), backend_(backend) {}
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override;

 private:
  Backend* backend_;
};

class LocalCommunicator : public Communicator {
 public:
  explicit LocalCommunicator(std::string name, Backend* backend = nullptr)
      : Communicator(std::move(name), 0, 1), backend_(backend) {}
  Work start(const Call& call) override;
  void wait(Work work) override;
  void barrier() override {}

 private:
  Backend* backend_;
};

}  // namespace kintsugi
