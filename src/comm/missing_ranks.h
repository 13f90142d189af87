#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_failure.h"

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

// Who is at fault if a call of a lane does not finish: ranks that have not made it although they
// wait for no call themselves (Stuck), and ranks that do not answer while others do (Silent).
// `answers`: of the ranks `asked`, in their order; empty without an answer.
RankFailure find_missing_ranks(const std::vector<int>& asked,
                               const std::vector<std::optional<std::string>>& answers,
                               const std::string& lane, std::int64_t number);

}  // namespace kintsugi
