#include "comm/nccl/nccl_world.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "comm/exchange.h"
#include "comm/local_communicator.h"
#include "comm/nccl/environment.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/socket.h"
#include "core/error.h"
#include "core/log.h"

namespace kintsugi {

using namespace nccl;

namespace {

std::string version_text() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void* make_scratch(int device) {
  constexpr std::size_t kBytes = 256;
  void* scratch = nullptr;
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  check_cuda(cudaMalloc(&scratch, kBytes), "cudaMalloc");
  check_cuda(cudaMemset(scratch, 0, kBytes), "cudaMemset");
  return scratch;
}

// A rank that shares its GPU waits for kernels that cannot run beside its own. All ranks hear the
// same and so come to the same verdict.
void check_gpus(Communicator& hosts, const NcclOptions& options) {
  const std::vector<std::string> gpus =
      gather_texts(hosts, fmt::format("{} of {}", options.pci, host_name()));
  std::map<std::string, int> owners;
  for (int rank = 0; rank < hosts.size(); ++rank) {
    const std::string& gpu = gpus[static_cast<std::size_t>(rank)];
    const auto [owner, first] = owners.emplace(gpu, rank);
    if (first) continue;
    if (!options.share_gpu)
      user_error(
          "ranks {} and {} both have GPU {}: start as many ranks on a node as it has GPUs, and let "
          "each choose its own",
          owner->second, rank, gpu);
    // Ranks on one GPU must seem to be on different machines.
    setenv("NCCL_HOSTID", fmt::format("{}-{}", host_name(), hosts.rank()).c_str(), 0);
  }
}

}  // namespace

struct NcclWorld::State {
  State(World& hosts, Backend& backend, NcclOptions given);
  ~State();

  void make_parent();
  void check_network(const std::optional<std::string>& network);
  ncclComm_t split_parent(const std::string& name, int color, int key);

  World& hosts;
  const NcclOptions options;
  std::unique_ptr<Communicator> all;  // on host memory
  std::string description;
  void* const scratch;
  Watch watch;
  std::shared_ptr<Lane> parent;  // all ranks: only split
  const Surroundings surroundings;
  int splits = 0;
};

NcclWorld::State::State(World& hosts, Backend& backend, NcclOptions given)
    : hosts(hosts),
      options(std::move(given)),
      all(hosts.split("nccl", 0, hosts.rank())),
      scratch(make_scratch(options.device)),
      watch(hosts, {.device = options.device,
                    .timeout_s = options.timeout_s,
                    .on_failure = options.on_failure ? options.on_failure
                                                     : [](const std::string& text) {
                                                         log_message(LogLevel::Error, text);
                                                         std::abort();  // rather than hang
                                                       },
                    .trace = options.trace,
                    .event_time = options.event_time}),
      surroundings{backend, static_cast<cudaStream_t>(options.stream), watch, scratch,
                   options.register_buffers} {
  KINTSUGI_CHECK(options.stream != nullptr, "NCCL without the stream of a CUDA backend");
  check_gpus(*all, options);
  set_defaults();
  const bool several_nodes = hosts.local_size() < hosts.size();
  const std::string variables = nccl::variables();
  const NetworkLog log(several_nodes);
  make_parent();
  const auto network = log.network();
  description = fmt::format("NCCL {}{}{}{}{}", version_text(), network ? ", network " : "",
                            network.value_or(""), variables.empty() ? "" : "; ", variables);
  if (several_nodes) check_network(network);
}

NcclWorld::State::~State() {
  try {
    if (parent && !watch.in_trouble()) watch.remove(parent);
  } catch (const Failure& error) {
    log_warning("{}", error.what());
  }
  cudaFree(scratch);
}

void NcclWorld::State::make_parent() {
  ncclUniqueId id{};
  if (hosts.rank() == 0) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  all->wait(all->broadcast(Tensor(&id, DType::U8, {sizeof id}), 0));
  std::vector<int> members(static_cast<std::size_t>(hosts.size()));
  for (int rank = 0; rank < hosts.size(); ++rank) members[static_cast<std::size_t>(rank)] = rank;
  auto lane = std::make_shared<Lane>("all", members, std::make_shared<CommunicationTimes>());
  watch.inside("ncclCommInitRank", lane.get(), [&] {
    check_nccl(ncclCommInitRank(&lane->comm, hosts.size(), id, hosts.rank()), "ncclCommInitRank");
  });
  watch.add(lane);
  parent = std::move(lane);
}

void NcclWorld::State::check_network(const std::optional<std::string>& network) {
  if (!network && hosts.rank() == 0)
    log_warning("NCCL_DEBUG is set: whether NCCL uses TCP between nodes cannot be checked");
  // One rank's network may differ from the others': the first that has only TCP speaks for all.
  const auto networks = gather_texts(*all, network.value_or(""));
  const auto tcp = std::find(networks.begin(), networks.end(), "Socket");
  if (tcp == networks.end() || options.allow_sockets) return;
  user_error(
      "NCCL talks over TCP between nodes (rank {}): load the network plug-in of this machine "
      "(NCCL_NET_PLUGIN, LD_LIBRARY_PATH), or set comm.allow_sockets if there is no other network",
      tcp - networks.begin());
}

// Nothing of the parent is shared: calls of groups that share would wait for each other.
ncclComm_t NcclWorld::State::split_parent(const std::string& name, int color, int key) {
  ncclComm_t comm = nullptr;
  watch.inside("ncclCommSplit", parent.get(), [&] {
    check_nccl(ncclCommSplit(parent->comm, color, key, &comm, nullptr), "ncclCommSplit");
    KINTSUGI_CHECK((comm == nullptr) == (color == NCCL_SPLIT_NOCOLOR), "group {} of NCCL", name);
  });
  return comm;
}

bool built_with_nccl() { return true; }

NcclWorld::NcclWorld(World& hosts, Backend& backend, NcclOptions options)
    : state_(std::make_unique<State>(hosts, backend, std::move(options))) {}
NcclWorld::~NcclWorld() = default;

int NcclWorld::rank() const { return state_->hosts.rank(); }
int NcclWorld::size() const { return state_->hosts.size(); }
int NcclWorld::local_rank() const { return state_->hosts.local_rank(); }
int NcclWorld::local_size() const { return state_->hosts.local_size(); }
const std::string& NcclWorld::description() const { return state_->description; }

std::unique_ptr<Communicator> NcclWorld::split(const std::string& name, int color, int key) {
  KINTSUGI_CHECK(color >= 0, "group {} of color {}", name, color);
  GroupParts parts{.name = name,
                   .id = fmt::format("{}#{}", name, ++state_->splits),
                   .members = {},
                   .host = state_->hosts.split(name, color, key)};
  Communicator& host = *parts.host;
  parts.members.resize(static_cast<std::size_t>(host.size()));
  std::int32_t own = rank();
  static_assert(sizeof(int) == sizeof own);
  host.wait(host.all_gather(Tensor(parts.members.data(), DType::I32, {host.size()}),
                            Tensor(&own, DType::I32, {1})));
  const bool alone = host.size() == 1;
  const ncclComm_t comm = state_->split_parent(name, alone ? NCCL_SPLIT_NOCOLOR : color, key);
  if (alone) return std::make_unique<LocalCommunicator>(name, &state_->surroundings.backend);
  int place = -1, count = 0;
  check_nccl(ncclCommUserRank(comm, &place), "ncclCommUserRank");
  check_nccl(ncclCommCount(comm, &count), "ncclCommCount");
  KINTSUGI_CHECK(place == host.rank() && count == host.size(),
                 "group {}: rank {} of {} in NCCL, {} of {} on the host", name, place, count,
                 host.rank(), host.size());
  auto group = std::make_unique<NcclCommunicator>(state_->surroundings, std::move(parts), comm);
  const auto& messages = state_->options.message_groups;
  if (std::find(messages.begin(), messages.end(), name) != messages.end()) group->connect_ring();
  return group;
}

}  // namespace kintsugi
