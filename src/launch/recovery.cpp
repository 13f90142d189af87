#include "launch/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kintsugi {
namespace {

bool lists(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Attempts at the end of the list that saved nothing newer than there was before them.
int fruitless_attempts(const std::vector<LaunchAttempt>& attempts, std::int64_t saved_before) {
  int count = 0;
  for (auto at = attempts.rbegin(); at != attempts.rend(); ++at) {
    const std::int64_t before = at + 1 == attempts.rend() ? saved_before : (at + 1)->saved;
    if (at->saved > before) break;
    ++count;
  }
  return count;
}

}  // namespace

double start_limit_s(const std::vector<LaunchAttempt>& attempts, double before_s,
                     const StartLimits& limits) {
  double slowest_s = before_s, patience = 1;
  for (const LaunchAttempt& attempt : attempts) {
    slowest_s = std::max(slowest_s, attempt.reported_s);
    patience = attempt.reported_s < 0 ? 2 * patience : 1;
  }
  if (slowest_s < 0) return limits.first_s;
  const double known_s = std::max(limits.again_s, limits.times_known * slowest_s);
  return std::min(limits.first_s, patience * known_s);
}

Decision decide(const std::vector<LaunchAttempt>& attempts, std::int64_t saved_before,
                const RecoveryLimits& limits) {
  const LaunchAttempt& last = attempts.back();
  if (last.end.exit_code != exit_code::kFailure) return {.exit_code = last.end.exit_code};
  const int fruitless = fruitless_attempts(attempts, saved_before);
  if (fruitless >= limits.fruitless)
    return {
        .exit_code = exit_code::kNoProgress,
        .pause_s = 0,
        .reason = fmt::format("{} attempts in a row saved no new step; the last one ended with: {}",
                              fruitless, last.end.failure.text)};
  const double pause = limits.first_pause_s * std::pow(3, std::max(fruitless - 1, 0));
  return {.exit_code = {},
          .pause_s = std::min(pause, limits.longest_pause_s),
          .reason = last.end.failure.text};
}

NodeVerdict judge_node(const RankFailure& failure) {
  if (failure.node().empty()) return {};
  switch (failure.kind) {
    case FailureKind::Error:
    case FailureKind::Misread:
      return {.avoid = true};
    case FailureKind::Lost:
      return {.avoid = true, .trouble = NodeTrouble::Lost};
    case FailureKind::Silent:
    case FailureKind::Stuck:
      return {.avoid = true, .trouble = NodeTrouble::Hung};
    case FailureKind::Unknown:
    case FailureKind::Mistake:
    case FailureKind::DamagedFile:
    case FailureKind::Diverged:
      break;
  }
  return {};
}

std::optional<NodeChoice> choose_nodes(const JobDescription& job, const NodeStates& states,
                                       const std::function<bool(std::int64_t nodes)>& fits) {
  if (states.allocated.empty()) return NodeChoice{.nodes = job.nodes};
  std::vector<std::string> good, excluded;
  for (const std::string& node : states.allocated)
    if (lists(states.down, node) || lists(states.avoided, node))
      excluded.push_back(node);
    else
      good.push_back(node);
  // The ones that failed last are used again last.
  for (auto node = states.avoided.rbegin(); node != states.avoided.rend(); ++node) {
    if (static_cast<std::int64_t>(good.size()) >= job.nodes) break;
    if (lists(states.down, *node) || !lists(excluded, *node)) continue;
    std::erase(excluded, *node);
    good.push_back(*node);
  }
  for (auto nodes = std::min(job.nodes, static_cast<std::int64_t>(good.size()));
       nodes >= std::min(job.min_nodes, job.nodes) && nodes > 0; --nodes)
    if (nodes == job.nodes || fits(nodes)) return NodeChoice{.nodes = nodes, .exclude = excluded};
  return {};
}

}  // namespace kintsugi
