#pragma once

#include "backend/backend.h"
#include "comm/communicator.h"

namespace kintsugi {

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
