#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "plan/search/planner.h"

namespace kintsugi {

enum class RankBy { Time, Energy, Cost };
RankBy parse_rank_by(const std::string& word);

// Restricts the search to layouts with these values. 0, -1 (zero) and empty: no restriction.
struct SearchLimits {
  int gpus = 0;
  int tp = 0, cp = 0, pp = 0, ep = 0;
  std::int64_t micro = 0;
  int zero = -1;
  std::string recompute = {};  // none, selective or full
  std::string schedule = {};
  std::string context = {};  // ring or ulysses
  // What may be offloaded: "none", "optimizer", "gradients" (and the optimizer's state), or "all":
  // any of these. Empty: something only if nothing fits without.
  std::string offload = {};
  RankBy rank_by = RankBy::Time;
  bool risk = false;  // order by the upper end of the 90 % interval
  int best = 10;
};

struct SearchResult {
  std::vector<Evaluation> best;  // layouts that fit, best first
  struct Miss {
    Evaluation evaluation;
    std::string reason;
  };
  std::vector<Miss> misses;  // near misses, with the reason
  bool risk = false;         // `best` is in the order of SearchLimits::risk
  std::int64_t layouts = 0;  // number of valid layouts
  std::int64_t fitting = 0;  // number of layouts that fit
  Evaluation smallest = {};  // the layout with the least memory, whether it fits or not
};

// Evaluates every layout that this engine can run. `progress`: layouts.
SearchResult search_layouts(Planner& planner, const SearchLimits& limits,
                            const ProgressCall& progress = {});

// Calls `use` for each valid layout.
void for_each_layout(const PlanJob& job, const Machine& machine, const SearchLimits& limits,
                     const std::function<void(const Layout&)>& use);

double score(const Evaluation& evaluation, const Machine& machine, RankBy rank_by);

// The ways to offload that the limits name, in order of their cost.
std::vector<StateOffload> offloads_of(const SearchLimits& limits);

// Without offload, unless the limits name it.
bool some_layout_fits(Planner& planner, const SearchLimits& limits);

// The job for a number of GPUs; the default batch depends on it.
using JobOn = std::function<PlanJob(int gpus)>;
// The smallest number of GPUs above limits.gpus on which some layout fits; 0: none. Tries powers of
// two within a node, 1, 2, 3, 4, 6, 8, 12 … nodes and the whole machine.
int fewest_gpus(const JobOn& job_on, const Machine& machine, const SearchLimits& limits);

// The error message for a search that found no layout that fits (no_layout.cpp). It names what
// would help: fewer or other limits, more GPUs or GPUs with more memory. `job_on` gives the job for
// another number of GPUs.
std::string why_nothing_fits(Planner& planner, const SearchLimits& limits,
                             const SearchResult& result, const JobOn& job_on);

}  // namespace kintsugi
