#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kintsugi {

// Logical CPUs by the numbers of the operating system.
using CpuSet = std::set<int>;

std::string to_ranges(const CpuSet& cpus);  // "0-7,9"
// "0-7,9" or "0-7 9"; UserError about the text otherwise.
CpuSet parse_ranges(const std::string& text);
std::string to_mask(const CpuSet& cpus);  // "0xfe00"
CpuSet parse_mask(const std::string& text);

struct NumaDomain {
  int number = 0;
  // Logical CPU -> its core. A core has the number of its first hardware thread.
  std::map<int, int> core_of = {};
  std::set<int> gpus = {};  // by their numbers on the node
  bool operator==(const NumaDomain&) const = default;

  CpuSet cores() const;
};

// What a job must know of a node to place its ranks.
struct Topology {
  std::vector<NumaDomain> domains = {};
  bool operator==(const Topology&) const = default;

  CpuSet cores() const;
  CpuSet cores_of(const CpuSet& cpus) const;  // CPUs that the node does not have are left out
  bool has_cpu(int cpu) const;
  const NumaDomain* with_gpu(int gpu) const;  // nullptr: no domain has it
  int gpus() const;
};

// The recorded form, one text per NUMA domain, as in machine files:
//   numa 0: cores 0-15; threads 64-79; gpus 4-5
// `threads` are the further hardware threads in the order of the cores. UserError that names
// `source` and the line.
Topology parse_topology(const std::vector<std::string>& lines, const std::string& source);
std::vector<std::string> to_lines(const Topology& topology);

// A file with the recorded form, or the XML of hwloc (`lstopo --of xml`).
Topology load_topology(const std::filesystem::path& file);

// With the hwloc library. Without it (hwloc_missing.cpp) both throw a UserError that says so.
Topology read_hwloc_xml(const std::filesystem::path& file);
Topology topology_of_this_machine();

// The CPUs of each rank of a node. Rank i drives GPU i.
using RankCpus = std::vector<CpuSet>;

// Divides the cores next to each GPU, except the reserved ones, evenly among the ranks there: one
// hardware thread per core. Without GPUs, all cores are divided in order. UserError if a rank gets
// no core.
RankCpus bind_ranks(const Topology& topology, const CpuSet& reserved, int ranks);

std::string to_cpu_bind(const RankCpus& cpus);  // "mask_cpu:0xfe,0xfe00"
RankCpus parse_cpu_bind(const std::string& text);

// UserError with the reason if a node with this topology cannot run these ranks well: overlapping
// masks, reserved or missing cores, empty masks, cores far from the rank's GPU, a wrong number of
// masks. `source` names the masks: "--cpu-bind".
void check_masks(const RankCpus& cpus, const Topology& topology, const CpuSet& reserved, int ranks,
                 const std::string& source);

}  // namespace kintsugi
