#include "comm/nccl/nccl_world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/exchange.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/socket.h"
#include "core/error.h"
#include "core/log.h"

namespace kintsugi {

using namespace nccl;

namespace {

// Sets NCCL variables that we rely on, unless the user has set them. Call it before NCCL is used.
void set_defaults() {
  // Connect when a communicator is created. Otherwise the first call connects and blocks the host
  // until all other ranks have made it.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

// The variables of NCCL and RCCL: "NCCL_SOCKET_IFNAME=ib0 NCCL_NET_PLUGIN=…", or "".
std::string nccl_variables() {
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable)
    for (const std::string_view prefix : {"NCCL_", "RCCL_"})
      if (std::string_view(*variable).starts_with(prefix)) found.emplace_back(*variable);
  std::sort(found.begin(), found.end());
  std::string text;
  for (const std::string& variable : found) text += (text.empty() ? "" : " ") + variable;
  return text;
}

// Returns "IB" for an NCCL log that contains "… Using network IB".
std::optional<std::string> network_of(const std::string& log) {
  constexpr std::string_view kWords = "Using network ";
  const std::size_t at = log.rfind(kWords);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kWords.size();
  return log.substr(begin, log.find('\n', begin) - begin);
}

// Makes NCCL write a log, the only way to find out which network it uses. Construct it before NCCL
// is used.
class NetworkLog {
 public:
  explicit NetworkLog(bool enabled) {
    if (!enabled || std::getenv("NCCL_DEBUG") != nullptr) return;
    path_ = std::filesystem::temp_directory_path() / fmt::format("kintsugi-nccl-{}.log", getpid());
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_DEBUG_SUBSYS", "INIT", 0);
    setenv("NCCL_DEBUG_FILE", path_.c_str(), 1);
  }
  ~NetworkLog() {
    if (path_.empty()) return;
    std::error_code error;
    std::filesystem::remove(path_, error);  // NCCL keeps writing to the removed file
    for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) unsetenv(name);
  }
  NetworkLog(const NetworkLog&) = delete;
  NetworkLog& operator=(const NetworkLog&) = delete;

  // Empty if it is not enabled, or if the user has set NCCL_DEBUG.
  std::optional<std::string> network() const {
    if (path_.empty()) return {};
    std::ifstream file(path_);
    return network_of(std::string(std::istreambuf_iterator<char>(file), {}));
  }

 private:
  std::filesystem::path path_;
};

void* make_scratch(const Device& device) {
  constexpr std::size_t kBytes = 256;
  gpu::select_device(device.index);
  void* const scratch = gpu::try_allocate(kBytes);
  KINTSUGI_CHECK(scratch != nullptr, "no GPU memory is left for communication");
  gpu::set_bytes(scratch, 0, kBytes, device.stream);
  return scratch;
}

// Ranks on one GPU can deadlock, since their kernels may not run concurrently. All ranks compare
// the same list, so all of them throw or none does.
void check_gpus(Communicator& hosts, const std::string& pci, bool share_gpu) {
  const std::vector<std::string> gpus =
      gather_texts(hosts, fmt::format("{} of {}", pci, host_name()));
  std::map<std::string, int> owners;
  for (int rank = 0; rank < hosts.size(); ++rank) {
    const std::string& gpu = gpus[static_cast<std::size_t>(rank)];
    const auto [owner, first] = owners.emplace(gpu, rank);
    if (first) continue;
    if (!share_gpu)
      user_error(
          "ranks {} and {} both use GPU {}: start as many ranks on a node as it has GPUs, with "
          "gpu.device: auto",
          owner->second, rank, gpu);
    // NCCL accepts several ranks on one GPU only if they seem to be on different hosts.
    setenv("NCCL_HOSTID", fmt::format("{}-{}", host_name(), hosts.rank()).c_str(), 0);
  }
}

// An id for a new communicator of these ranks; all of them call it.
UniqueId agree_on_id(const Library& nccl, Communicator& hosts) {
  UniqueId id{};
  if (hosts.rank() == 0) nccl.check(nccl.get_unique_id(&id), "ncclGetUniqueId");
  hosts.wait(hosts.broadcast(Tensor(&id, DType::U8, {sizeof id}), 0));
  return id;
}

// Whether memory is to be registered, and can be.
bool can_register(const Library& nccl, const NcclOptions& options, int rank) {
  if (!options.register_buffers) return false;
  const bool can = nccl.comm_register != nullptr && nccl.comm_deregister != nullptr;
  if (!can && rank == 0)
    log_warning("comm.register_buffers has no effect: {} {} cannot register memory", nccl.name(),
                nccl.version());
  return can;
}

}  // namespace

struct NcclWorld::State {
  State(World& hosts, Backend& backend, NcclOptions given);
  ~State();

  void make_parent();
  void check_network(const std::optional<std::string>& network);
  // nullptr: this rank is alone in its group.
  Comm make_comm(Communicator& group, int color, int key);

  const std::shared_ptr<const Library> nccl;
  World& hosts;
  const NcclOptions options;
  std::unique_ptr<Communicator> all;  // all ranks, for host memory
  std::string description;
  std::string network;
  const Device device;
  void* const scratch;
  Watch watch;
  std::shared_ptr<Lane> parent;  // all ranks; only used to split
  const NcclContext context;
  int splits = 0;
};

NcclWorld::State::State(World& hosts, Backend& backend, NcclOptions given)
    : nccl(std::make_shared<const Library>(gpu::platform())),
      hosts(hosts),
      options(std::move(given)),
      all(hosts.split("nccl", 0, hosts.rank())),
      device(backend.device()),
      scratch(make_scratch(device)),
      watch(nccl, hosts, {.device = device.index,
                    .timeout_s = options.timeout_s,
                    .on_failure = options.on_failure ? options.on_failure
                                                     : [](const RankFailure& failure) {
                                                         log_message(LogLevel::Error, failure.text);
                                                         std::abort();  // rather than hang
                                                       },
                    .trace = options.trace,
                    .event_time = [&backend](gpu::Event event) { return backend.event_time(event); }}),
      context{nccl, backend, device.stream, watch, scratch,
                   can_register(*nccl, options, hosts.rank())} {
  KINTSUGI_CHECK(device.stream != nullptr, "{} needs a backend with a GPU", nccl->name());
  check_gpus(*all, device.pci, options.share_gpu);
  set_defaults();
  const bool several_nodes = hosts.local_size() < hosts.size();
  const std::string variables = nccl_variables();
  const NetworkLog log(several_nodes);
  make_parent();
  const auto found = log.network();
  network = found.value_or("");
  description =
      fmt::format("{} {}{}{}{}{}", nccl->name(), nccl->version(), found ? ", network " : "",
                  network, variables.empty() ? "" : "; ", variables);
  if (several_nodes) check_network(found);
}

NcclWorld::State::~State() {
  try {
    if (parent && !watch.has_failed()) watch.remove(parent);
  } catch (const Failure& error) {
    log_warning("{}", error.what());
  }
  gpu::release(scratch);
}

void NcclWorld::State::make_parent() {
  const UniqueId id = agree_on_id(*nccl, *all);
  std::vector<int> members(static_cast<std::size_t>(hosts.size()));
  for (int rank = 0; rank < hosts.size(); ++rank) members[static_cast<std::size_t>(rank)] = rank;
  auto lane = std::make_shared<Lane>("all", members, std::make_shared<CommunicationTimes>());
  watch.exclusively("ncclCommInitRank", lane.get(), [&] {
    nccl->check(nccl->comm_init_rank(&lane->comm, hosts.size(), id, hosts.rank()),
                "ncclCommInitRank");
  });
  watch.add(lane);
  parent = std::move(lane);
}

void NcclWorld::State::check_network(const std::optional<std::string>& network) {
  if (!network && hosts.rank() == 0)
    log_warning("NCCL_DEBUG is set: whether {} uses TCP between nodes cannot be checked",
                nccl->name());
  // Ranks may use different networks. The message names the first rank that uses TCP.
  const auto networks = gather_texts(*all, network.value_or(""));
  const auto tcp = std::find(networks.begin(), networks.end(), "Socket");
  if (tcp == networks.end() || options.allow_sockets) return;
  user_error(
      "{} uses TCP between nodes (rank {}): load the network plug-in of this machine "
      "(NCCL_NET_PLUGIN, LD_LIBRARY_PATH), or set comm.allow_sockets if there is no other network",
      nccl->name(), tcp - networks.begin());
}

// Does not share resources with the parent: calls of groups that share them wait for each other.
Comm NcclWorld::State::make_comm(Communicator& group, int color, int key) {
  Comm comm = nullptr;
  const bool single = group.size() == 1;
  if (nccl->comm_split != nullptr) {
    watch.exclusively("ncclCommSplit", parent.get(), [&] {
      nccl->check(nccl->comm_split(parent->comm, single ? kNoColor : color, key, &comm, nullptr),
                  "ncclCommSplit");
    });
  } else if (!single) {
    const UniqueId id = agree_on_id(*nccl, group);
    watch.exclusively("ncclCommInitRank", parent.get(), [&] {
      nccl->check(nccl->comm_init_rank(&comm, group.size(), id, group.rank()), "ncclCommInitRank");
    });
  }
  KINTSUGI_CHECK((comm == nullptr) == single, "group {} of {}", group.name(), nccl->name());
  return comm;
}

bool built_with_nccl() { return true; }
std::string nccl_library_name() { return library_name(gpu::platform()); }
std::string nccl_library_version() {
  try {
    return Library(gpu::platform()).version();
  } catch (const UserError&) {
    return "not found";
  }
}

NcclWorld::NcclWorld(World& hosts, Backend& backend, NcclOptions options)
    : World(hosts.place()), state_(std::make_unique<State>(hosts, backend, std::move(options))) {}
NcclWorld::~NcclWorld() = default;

const std::string& NcclWorld::description() const { return state_->description; }
const std::string& NcclWorld::network() const { return state_->network; }

std::unique_ptr<Communicator> NcclWorld::split(const std::string& name, int color, int key) {
  KINTSUGI_CHECK(color >= 0, "group {} of color {}", name, color);
  GroupInfo info{.name = name,
                 .id = fmt::format("{}#{}", name, ++state_->splits),
                 .members = {},
                 .host = state_->hosts.split(name, color, key)};
  Communicator& host = *info.host;
  info.members.resize(static_cast<std::size_t>(host.size()));
  std::int32_t own = rank();
  static_assert(sizeof(int) == sizeof own);
  host.wait(host.all_gather(Tensor(info.members.data(), DType::I32, {host.size()}),
                            Tensor(&own, DType::I32, {1})));
  const Comm comm = state_->make_comm(host, color, key);
  if (comm == nullptr) return std::make_unique<LocalCommunicator>(name, &state_->context.backend);
  const Library& nccl = *state_->nccl;
  int nccl_rank = -1, count = 0;
  nccl.check(nccl.comm_user_rank(comm, &nccl_rank), "ncclCommUserRank");
  nccl.check(nccl.comm_count(comm, &count), "ncclCommCount");
  KINTSUGI_CHECK(nccl_rank == host.rank() && count == host.size(),
                 "group {}: rank {} of {} in {}, {} of {} on the host", name, nccl_rank, count,
                 nccl.name(), host.rank(), host.size());
  auto group = std::make_unique<NcclCommunicator>(state_->context, std::move(info), comm);
  const auto& messages = state_->options.message_groups;
  if (std::find(messages.begin(), messages.end(), name) != messages.end()) group->connect_ring();
  return group;
}

}  // namespace kintsugi
