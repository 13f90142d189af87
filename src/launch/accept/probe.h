#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/grid.h"
#include "launch/doctor/measure.h"

namespace kintsugi {

// What the ranks of an acceptance test measure together, in one launch: `kintsugi accept --probe`.

// One size of a collective, or of messages: each rank sends one to the next rank and receives one
// from the rank before it, as the stages of a pipeline do.
struct CollectiveRate {
  Collective kind = Collective::AllReduce;
  double bytes = 0;    // of the whole tensor
  double seconds = 0;  // on this rank, the best of some calls
};

// One kind of group in one grid, as one of its ranks sees it. The lists are world ranks in the
// order of the group: those that should be in it, and those whose numbers arrived in an all-gather,
// in an all-reduce and in a reduce-scatter. -1: nobody's.
struct GroupFacts {
  std::string grid = {};  // "tp 2, dp 4"
  std::string kind = {};  // of GroupKind
  std::vector<int> expected = {}, gathered = {}, reduced = {}, scattered = {};
  std::vector<CollectiveRate> rates = {};
};

// Matmuls and an all-reduce that take about the same time: each alone, and both at once.
struct OverlapFacts {
  double compute_s = 0, communication_s = 0, both_s = 0;  // 0: not measured
  // The fraction of the shorter one that is hidden, 0 to 1.
  double hidden() const;
};

struct ProbeFacts {
  RankFacts rank = {};
  std::vector<GroupFacts> groups = {};
  OverlapFacts overlap = {};
  double seconds = 0;  // of these measurements, without the start of the ranks
};
std::string to_json_text(const std::vector<ProbeFacts>& ranks);
// UserError if the text is something else.
std::vector<ProbeFacts> probe_facts_of(const std::string& json_text, const std::string& source);

// Grids of this many ranks that together have every kind of group. `node_ranks`: of each node.
std::vector<Grid> probed_grids(int ranks, int node_ranks);
std::string grid_text(const Grid& grid);

struct ProbeLoad {
  std::vector<std::int64_t> bytes = {64 << 10, 1 << 20, 4 << 20};  // ascending
  int repetitions = 3;
  double seconds = 0.5;  // of one call: when one takes longer, larger ones are left out
  std::int64_t matmul = 512;
  DType precision = DType::F32;
};
// All ranks call these. `devices` has the ranks of `hosts`, for tensors of the backend. A group
// with the wrong ranks is a fact, and does not hang. Rates are measured once for the same groups.
std::vector<GroupFacts> measure_groups(World& hosts, World& devices, Backend& backend,
                                       const std::vector<Grid>& grids, const ProbeLoad& load,
                                       const SecondsClock& now);
OverlapFacts measure_overlap(World& hosts, World& devices, Backend& backend, const ProbeLoad& load,
                             const SecondsClock& now);

}  // namespace kintsugi
