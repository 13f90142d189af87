// Replaces comm/nccl/ in a binary built for no GPU.
#include "comm/nccl/nccl_world.h"
#include "core/error.h"

namespace kintsugi {

struct NcclWorld::State {
  std::string description, network;
};

bool built_with_nccl() { return false; }
std::string nccl_library_name() { return "NCCL"; }
std::string nccl_library_version() { return ""; }

NcclWorld::NcclWorld(World& hosts, Backend&, NcclOptions) : World(hosts.place()) {
  user_error(
      "this binary was built for no GPU: build it where a CUDA toolkit is installed, or set "
      "device: "
      "cpu");
}
NcclWorld::~NcclWorld() = default;

std::unique_ptr<Communicator> NcclWorld::split(const std::string&, int, int) { return nullptr; }
const std::string& NcclWorld::description() const { return state_->description; }
const std::string& NcclWorld::network() const { return state_->network; }

}  // namespace kintsugi
