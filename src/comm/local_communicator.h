#pragma once

#include "backend/backend.h"
#include "comm/communicator.h"

namespace kintsugi {

// A world of one rank: collectives copy if source and destination differ. Tensors are in the
// memory of `backend`, or in host memory without one.
class LocalWorld : public World {
 public:
  explicit LocalWorld(Backend* backend = nullptr) : backend_(backend) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override;

 private:
  Backend* backend_;
};

class LocalCommunicator : public Communicator {
 public:
  explicit LocalCommunicator(std::string name, Backend* backend = nullptr)
      : name_(std::move(name)), backend_(backend) {}
  const std::string& name() const override { return name_; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

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
  Work copy(Tensor destination, Tensor source);

  std::string name_;
  Backend* backend_;
};

}  // namespace kintsugi
