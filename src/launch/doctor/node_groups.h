#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launch/doctor/facts.h"

namespace kintsugi {

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
