#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// The calls of one rank in a lane: a group, or one direction between two ranks, whose calls run one
// after the other. Ranks send them to each other in a roll call.
struct LaneCalls {
  std::string id;
  std::int64_t started = 0, finished = 0;
  bool operator==(const LaneCalls&) const = default;
};
std::string to_text(const std::vector<LaneCalls>& lanes);
std::vector<LaneCalls> lane_calls_of(const std::string& text);  // leaves out damaged lines

// What the other ranks of a lane answered about a call that does not finish.
struct MissingRanks {
  std::string text;
  // The ranks that have not made the call although they wait for no call themselves, or that do
  // not answer while others do. Empty: unknown.
  std::vector<int> culprits = {};
};
// `answers`: of the ranks `asked`, in their order; empty without an answer.
MissingRanks find_missing_ranks(const std::vector<int>& asked,
                                const std::vector<std::optional<std::string>>& answers,
                                const std::string& lane, std::int64_t number);

}  // namespace kintsugi
