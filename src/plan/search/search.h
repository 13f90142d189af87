#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/search/planner.h"

namespace kintsugi {

enum class RankBy { Time, Energy, Cost };
RankBy parse_rank_by(const std::string& word);

// What the user allows; 0 and empty: anything.
struct SearchLimits {
  int gpus = 0;
  int tp = 0, cp = 0, pp = 0;
  std::int64_t micro = 0;
  int zero = -1;
  std::string recompute = {};  // none, selective or full
  std::string schedule = {};
  RankBy rank_by = RankBy::Time;
  int best = 10;
};

struct SearchResult {
  std::vector<Evaluation> best;  // that fit, best first
  struct Miss {
    Evaluation evaluation;
    std::string reason;
  };
  std::vector<Miss> misses;  // that came near
  std::int64_t layouts = 0;  // valid ones
  std::int64_t fitting = 0;  // of them
  Evaluation smallest = {};  // needs the least memory, fits or not
};

// Every layout that this engine can run. UserError where there is none at all.
SearchResult search_layouts(Planner& planner, const SearchLimits& limits);

// Calls `use` for each valid layout.
void for_each_layout(const PlanJob& job, const Machine& machine, const SearchLimits& limits,
                     const std::function<void(const Layout&)>& use);

double score(const Evaluation& evaluation, const Machine& machine, RankBy rank_by);

bool some_layout_fits(Planner& planner, const SearchLimits& limits);

// The job on a number of GPUs: a batch that nobody gave depends on it.
using JobOn = std::function<PlanJob(int gpus)>;
// The fewest GPUs, more than limits.gpus, on which some layout fits; 0: none. Tried are parts of
// a node, 1, 2, 3, 4, 6, 8, 12 … nodes and the whole machine.
int fewest_gpus(const JobOn& job_on, const Machine& machine, const SearchLimits& limits);

}  // namespace kintsugi
