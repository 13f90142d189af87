#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

  virtual ~Communicator() = default;
  virtual const std::string& name() const = 0;  // "dp", "shard", …
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Work all_reduce(Tensor x, ReduceOp op = ReduceOp::Sum) = 0;
  // shard (n) = this rank's n elements of the sum of full (n * size). shard may be this rank's
  // range of full.
  virtual Work reduce_scatter(Tensor shard, Tensor full) = 0;
  // full (n * size) = the shards (n) of all ranks. shard may be this rank's range
  // of full.
  virtual Work all_gather(Tensor full, Tensor shard) = 0;
  virtual Work broadcast(Tensor x, int root) = 0;
  // Every rank sends counts.sent[r] elements to rank r. `sent` and `received` are in rank order,
  // without gaps. The counts are only read during the call.
  virtual Work all_to_all(Tensor received, Tensor sent, const ExchangeCounts& counts) = 0;
  virtual Work send(Tensor x, int to) = 0;
  virtual Work receive(Tensor x, int from) = 0;

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
};

// All ranks of a job.
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // rank within this node
  virtual int local_size() const = 0;

  // Makes a group of the ranks with the same color, ordered by key, like MPI_Comm_split. All ranks
  // call it, with no collective in flight. Groups must be destroyed before the world.
  virtual std::unique_ptr<Communicator> split(const std::string& name, int color, int key) = 0;
};

}  // namespace kintsugi
