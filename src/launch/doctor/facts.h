#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kintsugi {

// What each rank finds out about itself and its node; gathered on rank 0 and judged there
// (judge.h).

struct BindingFacts {
  std::vector<int> cores = {};   // that this rank may use
  std::vector<int> usable = {};  // that the job may use on this node
  int threads = 1;
  std::string gpu = {};             // PCI id; empty: no GPU
  std::vector<int> gpu_cores = {};  // those in the GPU's NUMA node; empty: unknown

  bool bound() const { return cores != usable; }
};

struct DeviceFacts {
  std::string name;
  std::string problem;     // what it computed or stored wrong; empty: nothing
  std::string hash;        // of the matmul's result
  double free_bytes = 0;   // 0: not measured
  double flops_per_s = 0;  // 0: not measured
};

// The exchange of one pair of ranks, reported by the lower one.
struct PairRate {
  int first = 0, second = 0;
  bool between_nodes = false;
  double bytes_per_s = 0;  // in each direction
  bool wrong = false;      // the received bytes were not those that were sent
};

// Measured by the first rank of each node.
struct DirectoryFacts {
  bool checked = false;
  std::string problem;
  bool sees_first = true;  // the file that rank 0 wrote
  double free_bytes = 0;
  double write_bytes_per_s = 0;
};

struct HostFacts {
  double clock_offset_s = 0;       // of rank 0's clock
  double wall_clock_s = 0;         // seconds since 1970; 0: not measured
  double shared_memory_free = -1;  // bytes in /dev/shm; -1: unknown
  double old_shared_memory = 0;    // bytes of this user's files there that are older than an hour
  std::int64_t open_files = 0;     // the limit; 0: unknown
};

// A GPU of AMD, as the files of the kernel describe it: found without HIP.
struct AmdGpu {
  std::string pci;
  std::string name;       // "MI250X"; of an unknown chip "device 0x7408"
  std::string target;     // "gfx90a"; empty: unknown
  int compute_units = 0;  // 0: unknown
  int module = 0;         // the two GCDs of an MI250X have the same number

  bool operator==(const AmdGpu&) const = default;
};

struct AmdLibrary {
  std::string name;     // "librccl"
  std::string problem;  // why it cannot be opened; empty: it can

  bool operator==(const AmdLibrary&) const = default;
};

struct AmdFacts {
  std::vector<int> usable;  // of the node's GPUs, by their place in `gpus`: those this rank may use
  std::string hidden;       // what is wrong with the variables that choose GPUs; empty: nothing

  // Of the first rank of each node: the node.
  std::vector<AmdGpu> gpus;    // in the order of their PCI addresses
  std::string driver_problem;  // of /dev/kfd; empty: none
  std::string rocm;            // "6.2.4"; empty: unknown
  std::vector<AmdLibrary> libraries;
};

struct RankFacts {
  int rank = 0;
  std::string node = {};
  BindingFacts binding = {};
  DeviceFacts device = {};
  std::vector<PairRate> pairs = {};
  DirectoryFacts directory = {};
  HostFacts host = {};
  AmdFacts amd = {};
};

std::string to_json_text(const RankFacts& facts);
RankFacts facts_of(const std::string& json_text);

// "0-3,8" of {0, 1, 2, 3, 8}, and back. Text that is no such list gives an empty one.
std::string number_list(const std::vector<int>& numbers);
std::vector<int> parse_number_list(const std::string& text);

// The ranks of each node, in the order of their first ranks.
struct NodeGroups {
  std::vector<std::string> names;
  std::vector<std::vector<int>> ranks;  // by node
  std::vector<int> node, local;         // by rank: number of its node, and rank within it

  explicit NodeGroups(const std::vector<std::string>& node_of_rank);
};
std::vector<std::string> nodes_of(const std::vector<RankFacts>& ranks);

// Pairs of neighbours in a ring of n, in rounds of disjoint pairs: at most three rounds.
std::vector<std::vector<std::pair<int, int>>> ring_rounds(int n);

}  // namespace kintsugi
