#include "comm/missing_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace kintsugi {
namespace {

// "rank 3, rank 4 and 500 more".
struct RankList {
  static constexpr int kNamed = 8;
  std::string names = {};
  int count = 0;

  void add(const std::string& name) {
    if (count++ < kNamed) names += (names.empty() ? "" : ", ") + name;
  }
  std::string text() const {
    return count <= kNamed ? names : fmt::format("{} and {} more", names, count - kNamed);
  }
};

std::int64_t started_in(const std::vector<LaneCalls>& lanes, const std::string& id) {
  const auto lane =
      std::find_if(lanes.begin(), lanes.end(), [&](const LaneCalls& one) { return one.id == id; });
  return lane == lanes.end() ? 0 : lane->started;
}

bool waits_itself(const std::vector<LaneCalls>& lanes) {
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const LaneCalls& lane) { return lane.finished < lane.started; });
}

}  // namespace

std::string to_text(const std::vector<LaneCalls>& lanes) {
  std::string text;
  for (const LaneCalls& lane : lanes)
    text += fmt::format("{}\t{}\t{}\n", lane.id, lane.started, lane.finished);
  return text;
}

std::vector<LaneCalls> lane_calls_of(const std::string& text) {
  std::vector<LaneCalls> lanes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    LaneCalls lane;
    if (std::getline(fields, lane.id, '\t') && fields >> lane.started >> lane.finished)
      lanes.push_back(std::move(lane));
  }
  return lanes;
}

RankFailure find_missing_ranks(const std::vector<int>& asked,
                               const std::vector<std::optional<std::string>>& answers,
                               const std::string& lane, std::int64_t number) {
  RankFailure missing;
  RankList silent, behind;
  // Without any answer, the network of this rank itself may be broken.
  const bool reachable =
      std::any_of(answers.begin(), answers.end(), [](const auto& one) { return one.has_value(); });
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!answers[i]) {
      silent.add(fmt::format("rank {}", asked[i]));
      if (!reachable) continue;
      missing.culprits.push_back({.rank = asked[i]});
      if (missing.kind == FailureKind::Unknown) missing.kind = FailureKind::Silent;
      continue;
    }
    const std::vector<LaneCalls> lanes = lane_calls_of(*answers[i]);
    const std::int64_t started = started_in(lanes, lane);
    if (started >= number) continue;
    // A rank that waits too only passes the delay on: another one is the cause.
    const bool waits = waits_itself(lanes);
    behind.add(fmt::format("rank {} (after {} calls{})", asked[i], started,
                           waits ? "; it waits for another call" : ""));
    if (waits) continue;
    missing.culprits.push_back({.rank = asked[i]});
    missing.kind = FailureKind::Stuck;
  }
  if (silent.count == 0 && behind.count == 0)
    missing.text = "all its ranks have made that call: a GPU or the network hangs";
  else
    missing.text = (behind.count == 0 ? "" : "it was not called by " + behind.text()) +
                   (behind.count == 0 || silent.count == 0 ? "" : "; ") +
                   (silent.count == 0 ? "" : "no answer from " + silent.text());
  return missing;
}

}  // namespace kintsugi
