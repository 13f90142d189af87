#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tensor/tensor.h"

namespace kintsugi {

enum class ReduceOp : std::uint8_t { Sum, Max };

// What the calls of one communicator amounted to so far. Communication that ran behind other work
// is busy_s - waited_s.
struct CommunicationTimes {
  std::int64_t started = 0;
  std::int64_t finished = 0;
  std::int64_t bytes = 0;  // sent by this rank
  double busy_s = 0;       // at least one call was under way
  double waited_s = 0;     // spent in wait() and barrier()
};

// Collectives inside one group of ranks. All ranks of a group call the same ones in the same order.
//
// A call returns at once. It starts when the operations queued on the backend so far are done, and
// wait() lets operations queued afterwards see its result; in between, nobody touches its tensors.
// Every call is waited for once, in any order. Tensors are contiguous. A group of one rank copies
// where source and destination differ, and does nothing else.
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
  // shard (n) = this rank's n elements of the sum of full (n * size). shard may be that part of
  // full.
  virtual Work reduce_scatter(Tensor shard, Tensor full) = 0;
  // full (n * size) = the shards (n) of all ranks. shard may be this rank's part of full.
  virtual Work all_gather(Tensor full, Tensor shard) = 0;
  virtual Work broadcast(Tensor x, int root) = 0;
  virtual Work send(Tensor x, int to) = 0;
  virtual Work receive(Tensor x, int from) = 0;

  virtual void wait(Work work) = 0;
  virtual void barrier() = 0;  // waits

  // Memory that many calls will use, until what is returned goes: the network may then move it
  // without copies of its own. Nothing where a world has no use for it. Goes before the group.
  virtual std::shared_ptr<void> register_memory(Tensor x) {
    (void)x;
    return {};
  }
  // Zero where a world does not measure.
  virtual CommunicationTimes times() const { return {}; }
};

// All ranks of a job.
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among the ranks of this node
  virtual int local_size() const = 0;

  // A group of the ranks that give the same color, ordered by key. Every rank of the world calls
  // it, with no collective under way. A group goes before its world.
  virtual std::unique_ptr<Communicator> split(const std::string& name, int color, int key) = 0;
};

}  // namespace kintsugi
