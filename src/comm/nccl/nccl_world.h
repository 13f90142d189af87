#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "core/trace.h"

namespace kintsugi {

// Whether this binary can make one.
bool built_with_nccl();

struct NcclOptions {
  // The CUDA backend's: see cuda_backend.h. The device's PCI id tells GPUs of a node apart.
  void* stream = nullptr;
  int device = 0;
  std::string pci = {};
  // A call that this GPU has come to and that does not end in this time is a failure.
  double timeout_s = 600;
  // Between nodes NCCL falls back to TCP where it finds no better network, at a twentieth of the
  // speed: an error unless told otherwise.
  bool allow_sockets = false;
  // Several ranks on one GPU, for tests.
  bool share_gpu = false;
  // Tell NCCL of the memory that groups are told of (Communicator::register_memory).
  bool register_buffers = false;
  // Groups whose neighbours (in a ring) send each other messages: connected when they are made.
  // Elsewhere the first message between two ranks holds up both hosts until the other has called
  // it.
  std::vector<std::string> message_groups = {"pp", "cp"};
  // What went wrong and who is to blame; called once, from another thread, when all communicators
  // have been aborted. The process should end: what its main thread waits for will never come.
  std::function<void(const std::string&)> on_failure = {};
  // Is told of every call, if there is one. When the device came to a cudaEvent_t, in the trace's
  // seconds, is the backend's to say: both then have one zero.
  Trace* trace = nullptr;
  std::function<double(void* event)> event_time = {};
};

// The ranks of a host world, for tensors in GPU memory. Every call is queued on a stream of its
// group behind the backend's operations so far, and wait() only queues, too. Messages between two
// ranks, in one direction, have a stream and an NCCL communicator of their own: they wait for
// nothing but the messages before them. Groups that share ranks are called in the same order on all
// of them.
// Nothing of it may be recorded (Backend::replay): NCCL keeps communicators until no graph uses
// them.
class NcclWorld : public World {
 public:
  // Every rank calls it. UserError where two ranks have the same GPU, or nodes only TCP. The
  // arguments outlive it.
  NcclWorld(World& hosts, Backend& backend, NcclOptions options);
  ~NcclWorld() override;

  int rank() const override;
  int size() const override;
  int local_rank() const override;
  int local_size() const override;
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override;

  // "NCCL 2.28.9, network IB; NCCL_SOCKET_IFNAME=ib0"
  const std::string& description() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kintsugi
