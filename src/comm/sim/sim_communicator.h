#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backend/operation_trace.h"
#include "comm/grid.h"

namespace kintsugi {

// For the `sim` backend: moves no data and records every call and every wait.
class SimCommunicator final : public Communicator {
 public:
  SimCommunicator(std::string name, int rank, int size, OperationTrace& trace)
      : name_(std::move(name)), rank_(rank), size_(size), trace_(&trace) {}
  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Work all_reduce(Tensor x, ReduceOp op) override;
  Work reduce_scatter(Tensor shard, Tensor full) override;
  Work all_gather(Tensor full, Tensor shard) override;
  Work broadcast(Tensor x, int root) override;
  Work all_to_all(Tensor received, Tensor sent, const ExchangeCounts& counts) override;
  Work send(Tensor x, int to) override;
  Work receive(Tensor x, int from) override;
  void wait(Work work) override;
  void barrier() override {}

 private:
  Work start(TracedOperation::Transfer transfer, const Tensor& x);

  std::string name_;
  int rank_, size_;
  OperationTrace* trace_;
};

// The groups of the rank at `coordinates`, made of SimCommunicators.
Groups sim_groups(const Grid& grid, const Coordinates& coordinates, OperationTrace& trace);

}  // namespace kintsugi
