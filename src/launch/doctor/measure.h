#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "energy/meters/find_meters.h"
#include "launch/doctor/facts.h"

namespace kintsugi {

// The measurements. None of them throws because of what it finds: problems are facts.

using SecondsClock = std::function<double()>;
double steady_seconds();

// `root` is the directory that contains sys. `gpu` is a PCI id, or empty.
BindingFacts measure_binding(int threads, const std::string& gpu,
                             const std::filesystem::path& root = "/");

struct DeviceLoad {
  DType precision = DType::F32;
  std::int64_t size = 512;               // of the matmul's result, in both dimensions
  std::int64_t depth = 512;              // of its sums; a multiple of 4, at most 65536
  int repetitions = 3;                   // timed; 0: only check the result
  std::int64_t memory_bytes = 16 << 20;  // written and read back
};
// The matmul's operands are small integers, so its result is exact in every precision.
DeviceFacts measure_device(Backend& backend, const DeviceLoad& load, const SecondsClock& now);

// Exchanges data between neighbours in a ring of the ranks of each node, and of the nodes. All
// ranks of `devices` call it, with a group `control` of the same ranks for host memory.
struct LinkLoad {
  bool inside_nodes = true, between_nodes = true;
  std::int64_t bytes = 4 << 20;  // per message
  double seconds = 0.05;         // for the messages of one pair; the size is reduced to fit
  const char* name = "doctor";   // of the groups
};
std::vector<PairRate> measure_links(World& devices, Communicator& control, Backend& backend,
                                    const NodeGroups& nodes, const LinkLoad& load,
                                    const SecondsClock& now);
// All-reduces known numbers over all ranks. Returns what is wrong, or nothing.
std::string check_all_reduce(World& devices, Backend& backend);

// Writes, syncs, reads back and removes a file. The first rank of each node calls it.
DirectoryFacts measure_directory(const std::filesystem::path& directory, const std::string& file,
                                 std::int64_t bytes, const SecondsClock& now);
// The deepest part of the path that exists.
std::filesystem::path existing_part(const std::filesystem::path& path);

HostFacts measure_host(const std::filesystem::path& root = "/");
// The variables that all ranks should have in common: {"NCCL_SOCKET_IFNAME", "hsn"}.
std::vector<std::pair<std::string, std::string>> network_variables(const char* const* environment);

// The GPUs of AMD in sys below `root`, and the variables that choose among them. With `node` also
// ROCm and its libraries, which are opened; nothing is, where there is no such GPU.
AmdFacts measure_amd(bool node, const Environment& environment,
                     const std::filesystem::path& root = "/");

}  // namespace kintsugi
