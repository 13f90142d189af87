#include "launch/doctor/node_groups.h"

namespace kintsugi {

NodeGroups::NodeGroups(const std::vector<std::string>& node_of_rank) {
  std::map<std::string, int> numbers;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    const auto [found, added] = numbers.emplace(node_of_rank[rank], static_cast<int>(names.size()));
    if (added) {
      names.push_back(node_of_rank[rank]);
      ranks.emplace_back();
    }
    std::vector<int>& members = ranks[static_cast<std::size_t>(found->second)];
    node.push_back(found->second);
    local.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
}

std::vector<std::string> nodes_of(const std::vector<RankFacts>& ranks) {
  std::vector<std::string> nodes;
  nodes.reserve(ranks.size());
  for (const RankFacts& rank : ranks) nodes.push_back(rank.node);
  return nodes;
}

std::vector<std::vector<std::pair<int, int>>> ring_rounds(int n) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int first : {0, 1}) {
    std::vector<std::pair<int, int>> round;
    for (int i = first; i + 1 < n; i += 2) round.emplace_back(i, i + 1);
    if (!round.empty()) rounds.push_back(std::move(round));
  }
  if (n > 2 && n % 2 == 0) rounds[1].emplace_back(0, n - 1);  // closes the ring
  if (n > 2 && n % 2 == 1) rounds.push_back({{0, n - 1}});
  return rounds;
}

}  // namespace kintsugi
