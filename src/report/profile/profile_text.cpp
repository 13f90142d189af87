#include <fmt/core.h>

#include <algorithm>

#include "core/units.h"
#include "report/profile/profile_output.h"

namespace kintsugi {
namespace {

constexpr std::size_t kOperationRows = 25, kChangeRows = 20, kRankRows = 16, kGapRows = 5,
                      kIdleRows = 8, kLayerRows = 40;
constexpr std::size_t kNameWidth = 48;

std::string ms(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }
std::string share_text(double part, double whole) {
  return fmt::format("{:.1f} %", whole > 0 ? 100 * part / whole : 0.0);
}

// Cut to the width of its column, in bytes.
std::string column(const std::string& name) {
  return name.size() <= kNameWidth ? name : name.substr(0, kNameWidth - 3) + "...";
}

std::string steps_text(const ProfileFacts& facts) {
  return facts.first_step == facts.last_step
             ? fmt::format("step {}", facts.first_step)
             : fmt::format("steps {}-{}", facts.first_step, facts.last_step);
}

double trainer_mean_s(const ProfileFacts& facts) {
  double sum = 0;
  for (const double seconds : facts.step_s) sum += seconds;
  return facts.step_s.empty() ? 0 : sum / static_cast<double>(facts.step_s.size());
}

std::string heading(const ProfileAnalysis& analysis) {
  const ProfileFacts& facts = analysis.facts;
  std::string text = fmt::format("{} on {} of {}, {}", steps_text(facts), analysis.ranks.size(),
                                 format_number(facts.ranks, "rank"), facts.device);
  text += fmt::format("\na step takes {} ms", ms(analysis.step_s()));
  if (const double trainer_s = trainer_mean_s(facts); trainer_s > 0)
    text += fmt::format(" (by the trainer's clock {} ms)", ms(trainer_s));
  return text + "\n";
}

std::string category_table(const ProfileAnalysis& analysis) {
  const TimeBreakdown& mean = analysis.mean;
  std::string text = fmt::format("\n{:<16} {:>12} {:>9}\n", "time of a step", "ms", "share");
  for (const TimeCategory category : kAllCategories)
    text += fmt::format("{:<16} {:>12} {:>9}\n", to_string(category), ms(mean[category]),
                        share_text(mean[category], mean.wall_s));
  text += fmt::format("{:<16} {:>12}\n", "sum", ms(mean.wall_s));
  text += fmt::format("kernels run {} of the time", share_text(mean.utilisation(), 1));
  if (mean.multiprocessor_efficiency() > 0)
    text += fmt::format(", on {} of the multiprocessors (estimated)",
                        share_text(mean.multiprocessor_efficiency(), 1));
  if (mean.overlap_s > 0)
    text += fmt::format("; {} ms of them overlap with communication", ms(mean.overlap_s));
  return text + "\n";
}

std::string rank_table(const ProfileAnalysis& analysis) {
  if (analysis.ranks.size() < 2) return "";
  std::string text = fmt::format("\n{:<28} {:>10} {:>10} {:>14} {:>10}\n", "rank", "ms", "Kernel",
                                 "Communication", "idle");
  for (std::size_t i = 0; i < std::min(kRankRows, analysis.ranks.size()); ++i) {
    const RankTrace& rank = analysis.ranks[i];
    std::vector<StepBreakdown> own;
    for (const StepBreakdown& step : analysis.steps)
      if (step.rank == rank.rank) own.push_back(step);
    const TimeBreakdown mean = mean_breakdown(own);
    text += fmt::format("{:<28} {:>10} {:>10} {:>14} {:>10}\n",
                        fmt::format("{}: {}", rank.rank, rank.coordinates), ms(mean.wall_s),
                        share_text(mean[TimeCategory::Kernel], mean.wall_s),
                        share_text(mean[TimeCategory::Communication], mean.wall_s),
                        share_text(mean.idle_s(), mean.wall_s));
  }
  if (analysis.ranks.size() > kRankRows)
    text += fmt::format("and {} more\n", analysis.ranks.size() - kRankRows);
  return text;
}

std::string rate_text(const OperationTotal& one) {
  if (one.work == WorkKind::Matmul || one.work == WorkKind::Attention)
    return format_si(one.flops_per_s()) + "FLOP/s";
  return one.bytes > 0 ? format_si(one.bytes_per_s()) + "B/s" : "";
}

std::string operation_table(const ProfileAnalysis& analysis) {
  const auto& all = analysis.operations.operations;
  std::string text =
      fmt::format("\n{:<48} {:>8} {:>10} {:>8} {:>14} {:>13}\n", "operation (per step)", "calls",
                  "ms", "share", "rate", "of attainable");
  for (std::size_t i = 0; i < std::min(kOperationRows, all.size()); ++i) {
    const OperationTotal& one = all[i];
    const double reached = efficiency(one, analysis.facts);
    text += fmt::format("{:<48} {:>8.4g} {:>10} {:>8} {:>14} {:>13}\n", column(one.name), one.calls,
                        ms(one.seconds), share_text(one.seconds, analysis.step_s()), rate_text(one),
                        reached > 0 ? share_text(reached, 1) : "");
  }
  if (all.size() <= kOperationRows) return text;
  double rest = 0;
  for (std::size_t i = kOperationRows; i < all.size(); ++i) rest += all[i].seconds;
  return text + fmt::format("{:<48} {:>8} {:>10} {:>8}\n",
                            fmt::format("{} more", all.size() - kOperationRows), "", ms(rest),
                            share_text(rest, analysis.step_s()));
}

std::string phase_table(const ProfileAnalysis& analysis) {
  std::string text = fmt::format("\n{:<16} {:>12} {:>9}\n", "phase", "ms", "share");
  for (const PhaseTotal& one : analysis.operations.phases)
    text += fmt::format("{:<16} {:>12} {:>9}\n", one.name.empty() ? "(none)" : one.name,
                        ms(one.seconds), share_text(one.seconds, analysis.step_s()));
  return text;
}

std::string layer_table(const ProfileAnalysis& analysis) {
  std::string text = fmt::format("\n{:<16} {:>10} {:>9}  {}\n", "layer", "ms", "share", "by phase");
  const auto& all = analysis.operations.layers;
  for (std::size_t i = 0; i < std::min(kLayerRows, all.size()); ++i) {
    const LayerTotal& one = all[i];
    std::string phases;
    for (const auto& [name, seconds] : one.phases)
      phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", name, ms(seconds));
    text += fmt::format("{:<16} {:>10} {:>9}  {}\n", one.name.empty() ? "(none)" : one.name,
                        ms(one.seconds), share_text(one.seconds, analysis.step_s()), phases);
  }
  if (all.size() > kLayerRows) text += fmt::format("{} more\n", all.size() - kLayerRows);
  return text;
}

std::string idle_text(const ProfileAnalysis& analysis) {
  const IdleTime& idle = analysis.idle;
  std::string text =
      fmt::format("\nthe device is idle for {} ms of a step ({}), in {:.4g} gaps\n",
                  ms(idle.seconds), share_text(idle.seconds, analysis.step_s()), idle.gaps);
  for (std::size_t i = 0; i < std::min(kIdleRows, idle.hosts.size()); ++i) {
    const auto& [host, seconds] = idle.hosts[i];
    text += fmt::format("  {:>10} ms  {}\n", ms(seconds),
                        host.empty() ? "the host does nothing that was recorded"
                                     : "the host is in \"" + host + "\"");
  }
  for (std::size_t i = 0; i < std::min(kGapRows, idle.longest.size()); ++i) {
    const IdleGap& gap = idle.longest[i];
    text += fmt::format("  {} ms at {} ms of step {} on rank {}: between {} and {}{}\n",
                        ms(gap.seconds), ms(gap.begin_s), gap.step, gap.rank,
                        gap.before.empty() ? "the start of the step" : gap.before,
                        gap.after.empty() ? "the end of the step" : gap.after,
                        gap.host.empty() ? "" : ", \"" + gap.host + "\"");
  }
  return text;
}

std::string change_text(double before, double after) {
  if (before <= 0) return "";
  return fmt::format("{:+.1f} %", 100 * (after - before) / before);
}

}  // namespace

std::string profile_text(const ProfileAnalysis& analysis) {
  std::string text = heading(analysis) + category_table(analysis) + rank_table(analysis) +
                     operation_table(analysis) + phase_table(analysis) + layer_table(analysis) +
                     idle_text(analysis) + "\n";
  for (const std::string& line : exposure_lines(analysis.exposures)) text += line + "\n";
  for (const std::string& hint : analysis.hints) text += "hint: " + hint + "\n";
  return text;
}

std::string prediction_text(const ProfileAnalysis& analysis, const PredictedStep& predicted) {
  const auto measured = named_terms(analysis.terms), expected = named_terms(predicted.terms);
  std::string text = fmt::format("\n{:<26} {:>14} {:>14} {:>18}\n", "term", "measured ms",
                                 "predicted ms", "measured/predicted");
  for (std::size_t i = 0; i < measured.size(); ++i)
    text += fmt::format("{:<26} {:>14} {:>14} {:>18}\n", measured[i].first, ms(measured[i].second),
                        ms(expected[i].second),
                        expected[i].second > 0
                            ? fmt::format("{:.2f}", measured[i].second / expected[i].second)
                            : "");
  return text + fmt::format("predicted for {}\n", predicted.machine);
}

std::string diff_text(const ProfileDiff& diff) {
  std::string text = diff.headline() + "\n";
  text += fmt::format("\n{:<48} {:>10} {:>17} {:>10} {:>10} {:>10} {:>9}\n", "operation (per step)",
                      "", "calls", "before ms", "after ms", "delta ms", "delta");
  for (std::size_t i = 0; i < std::min(kChangeRows, diff.operations.size()); ++i) {
    const OperationChange& one = diff.operations[i];
    text += fmt::format(
        "{:<48} {:>10} {:>17} {:>10} {:>10} {:>10} {:>9}\n", column(one.name), to_string(one.kind),
        one.calls_before == one.calls_after
            ? fmt::format("{:.4g}", one.calls_after)
            : fmt::format("{:.4g} -> {:.4g}", one.calls_before, one.calls_after),
        ms(one.before_s), ms(one.after_s), fmt::format("{:+.3f}", 1e3 * one.delta_s()),
        change_text(one.before_s, one.after_s));
  }
  if (diff.operations.size() > kChangeRows)
    text += fmt::format("{} more\n", diff.operations.size() - kChangeRows);
  text += fmt::format("\n{:<16} {:>12} {:>12} {:>12} {:>9}\n", "category", "before ms", "after ms",
                      "delta ms", "delta");
  for (const TimeCategory category : kAllCategories) {
    const auto& [before, after] = diff.categories[static_cast<std::size_t>(category)];
    text += fmt::format("{:<16} {:>12} {:>12} {:>12} {:>9}\n", to_string(category), ms(before),
                        ms(after), fmt::format("{:+.3f}", 1e3 * (after - before)),
                        change_text(before, after));
  }
  return text;
}

}  // namespace kintsugi
