#pragma once

#include <string>
#include <vector>

#include "launch/topology.h"

namespace kintsugi {

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
