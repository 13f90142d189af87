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
      : Communicator(std::move(name), rank, size), trace_(&trace) {}
  Work start(const Call& call) override;
  void wait(Work work) override;
  void barrier() override {}

 private:
  OperationTrace* trace_;
};

// The groups of the rank at `coordinates`, made of SimCommunicators.
Groups sim_groups(const Grid& grid, const Coordinates& coordinates, OperationTrace& trace);

}  // namespace kintsugi
