#include "report/profile/analysis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/error.h"

namespace kintsugi {
namespace {

double optimizer_part_s(const OperationTotal& operation) {
  double sum = 0;
  for (const auto& [phase, seconds] : operation.phases)
    if (phase == "optimizer" || phase == "sum gradients") sum += seconds;
  return sum;
}

// The mean time in which a rank only waits for another pipeline stage.
double bubble_s(const std::vector<StepExposure>& exposures) {
  double sum = 0;
  for (const StepExposure& step : exposures)
    if (const auto found = step.groups.find("pp"); found != step.groups.end())
      sum += std::min(found->second.waiting_s, step.all.exposed_s);
  return exposures.empty() ? 0 : sum / static_cast<double>(exposures.size());
}

constexpr double kMuchDataLoading = 0.05;
constexpr double kMuchCommunication = 0.10;
constexpr double kMuchIdle = 0.10;
constexpr double kLeastGain = 0.01;  // of the step

// The operation that would gain the most time at its attainable rate.
const OperationTotal* furthest_below_roofline(const ProfileAnalysis& analysis) {
  const OperationTotal* found = nullptr;
  double most_s = kLeastGain * analysis.step_s();
  for (const OperationTotal& one : analysis.operations.operations) {
    const double reached = efficiency(one, analysis.facts);
    if (reached <= 0 || reached >= 1) continue;
    const double gain_s = (1 - reached) * one.seconds;
    if (gain_s <= most_s) continue;
    most_s = gain_s;
    found = &one;
  }
  return found;
}

// "0, 8, 16, …"
std::string list_of_ranks(const Profile& profile) {
  constexpr std::size_t kMostNamed = 16;
  std::string list;
  for (std::size_t i = 0; i < std::min(profile.ranks.size(), kMostNamed); ++i)
    list += fmt::format("{}{}", i > 0 ? ", " : "", profile.ranks[i].rank);
  return profile.ranks.size() > kMostNamed ? list + ", …" : list;
}

void keep_rank(Profile& profile, const std::string& source, int rank) {
  const bool has_rank = std::any_of(profile.ranks.begin(), profile.ranks.end(),
                                    [&](const RankTrace& one) { return one.rank == rank; });
  if (!has_rank)
    user_error("--rank {}: {} does not have this rank; it has {}", rank, source,
               list_of_ranks(profile));
  std::erase_if(profile.ranks, [&](const RankTrace& one) { return one.rank != rank; });
}

constexpr double kSmallOfOperation = 0.02, kSmallOfStep = 0.0005;

ChangeKind kind_of(const OperationChange& change, double step_s) {
  if (change.calls_before == 0) return ChangeKind::Added;
  if (change.calls_after == 0) return ChangeKind::Removed;
  if (std::abs(change.delta_s()) <=
      std::max(kSmallOfOperation * change.before_s, kSmallOfStep * step_s))
    return ChangeKind::Unchanged;
  return change.delta_s() > 0 ? ChangeKind::Slower : ChangeKind::Faster;
}

std::string relative(double before, double after) {
  return before > 0 ? fmt::format(" ({:+.1f} %)", 100 * (after - before) / before) : "";
}

StepTerms measured_terms(const OperationTotals& operations, const TimeBreakdown& mean,
                         const std::vector<StepExposure>& exposures) {
  StepTerms terms{.bubble_s = bubble_s(exposures), .step_s = mean.wall_s};
  for (const OperationTotal& one : operations.operations) {
    const double optimizer_s = optimizer_part_s(one);
    terms.optimizer_s += optimizer_s;
    double& term = one.work == WorkKind::Matmul      ? terms.matmul_s
                   : one.work == WorkKind::Attention ? terms.attention_s
                                                     : terms.memory_s;
    term += one.seconds - optimizer_s;
  }
  terms.communication_s = mean[TimeCategory::Communication] - terms.bubble_s;
  return terms;
}

// What to look at first, in sentences.
std::vector<std::string> profile_hints(const ProfileAnalysis& analysis) {
  const TimeBreakdown& mean = analysis.mean;
  std::vector<std::string> hints;
  if (const double share = mean.share(TimeCategory::DataLoader); share > kMuchDataLoading)
    hints.push_back(fmt::format(
        "{:.0f} % of a step waits for tokens: use a faster disk or tokenize the data beforehand "
        "(kintsugi data tokenize)",
        100 * share));
  if (const double share = mean.share(TimeCategory::Communication); share > kMuchCommunication)
    hints.push_back(fmt::format(
        "{:.0f} % of a step is exposed communication: compare layouts with kintsugi plan, or use "
        "larger micro-batches",
        100 * share));
  if (const double share = mean.wall_s > 0 ? mean.idle_s() / mean.wall_s : 0; share > kMuchIdle) {
    const auto& hosts = analysis.idle.hosts;
    hints.push_back(fmt::format(
        "the device is idle for {:.0f} % of a step, most of it while the host {}", 100 * share,
        hosts.empty() || hosts.front().host.empty()
            ? "does nothing that was recorded"
            : fmt::format("is in \"{}\"", hosts.front().host)));
  }
  if (const OperationTotal* slow = furthest_below_roofline(analysis))
    hints.push_back(fmt::format(
        "{} reaches {:.0f} % of its attainable rate and takes {:.1f} % of a step: nothing else "
        "would gain more",
        slow->name, 100 * efficiency(*slow, analysis.facts),
        100 * slow->seconds / analysis.step_s()));
  return hints;
}

}  // namespace

std::vector<std::pair<std::string_view, double>> named_terms(const StepTerms& terms) {
  return {{"matmul", terms.matmul_s},
          {"attention", terms.attention_s},
          {"memory-bound operations", terms.memory_s},
          {"optimizer", terms.optimizer_s},
          {"exposed communication", terms.communication_s},
          {"pipeline bubble", terms.bubble_s},
          {"other", terms.other_s()},
          {"step", terms.step_s}};
}

ProfileAnalysis analyze(Profile profile, const std::string& source, std::optional<int> rank) {
  if (rank) keep_rank(profile, source, *rank);
  ProfileAnalysis result;
  result.steps = step_breakdowns(profile);
  if (result.steps.empty()) user_error("{} has no step: it was not recorded to its end", source);
  result.mean = mean_breakdown(result.steps);
  result.operations = operation_totals(profile);
  result.idle = idle_time(profile);
  result.exposures = step_exposures(profile.ranks);
  result.terms = measured_terms(result.operations, result.mean, result.exposures);
  result.facts = std::move(profile.facts);
  for (RankTrace& one : profile.ranks)
    result.ranks.push_back({.rank = one.rank, .coordinates = std::move(one.coordinates)});
  result.hints = profile_hints(result);
  return result;
}

std::string_view to_string(ChangeKind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"slower", "faster", "added", "removed",
                                                      "unchanged"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string ProfileDiff::headline() const {
  const OperationChange* worst = nullptr;
  for (const OperationChange& one : operations) {
    const bool costs = one.kind == ChangeKind::Slower || one.kind == ChangeKind::Added;
    if (costs && (worst == nullptr || one.delta_s() > worst->delta_s())) worst = &one;
  }
  const std::string step = fmt::format("a step takes {:.3f} ms instead of {:.3f} ms{}",
                                       1e3 * after_s, 1e3 * before_s, relative(before_s, after_s));
  if (worst == nullptr) return "no operation got slower; " + step;
  return fmt::format("{} got slower the most: {:+.3f} ms per step{}; {}", worst->name,
                     1e3 * worst->delta_s(), relative(worst->before_s, worst->after_s), step);
}

ProfileDiff compare_profiles(const ProfileAnalysis& before, const ProfileAnalysis& after) {
  ProfileDiff diff{.before_s = before.step_s(), .after_s = after.step_s()};
  for (std::size_t i = 0; i < kTimeCategories; ++i)
    diff.categories[i] = {before.mean.seconds[i], after.mean.seconds[i]};
  std::map<std::string, OperationChange> changes;
  for (const OperationTotal& one : before.operations.operations) {
    OperationChange& change = changes[one.name];
    change.calls_before = one.calls;
    change.before_s = one.seconds;
  }
  for (const OperationTotal& one : after.operations.operations) {
    OperationChange& change = changes[one.name];
    change.calls_after = one.calls;
    change.after_s = one.seconds;
  }
  for (auto& [name, change] : changes) {
    change.name = name;
    change.kind = kind_of(change, diff.before_s);
    diff.operations.push_back(std::move(change));
  }
  std::sort(diff.operations.begin(), diff.operations.end(), [](const auto& a, const auto& b) {
    return std::tuple(-std::abs(a.delta_s()), a.name) < std::tuple(-std::abs(b.delta_s()), b.name);
  });
  return diff;
}

}  // namespace kintsugi
