// Replaces comm/nccl/ in a binary built without CUDA or NCCL.
#include "comm/nccl/nccl_world.h"
#include "core/error.h"

namespace kintsugi {

struct NcclWorld::State {
  std::string description, network;
};

bool built_with_nccl() { return false; }
std::string nccl_library_version() { return ""; }

NcclWorld::NcclWorld(World& hosts, Backend&, NcclOptions) : World(hosts.place()) {
  user_error(
      "this binary was built without NCCL, which several ranks with GPUs need: build it where CUDA "
      "and NCCL are installed, or set device: cpu");
}
NcclWorld::~NcclWorld() = default;

std::unique_ptr<Communicator> NcclWorld::split(const std::string&, int, int) { return nullptr; }
const std::string& NcclWorld::description() const { return state_->description; }
const std::string& NcclWorld::network() const { return state_->network; }

}  // namespace kintsugi
