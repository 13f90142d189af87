#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "core/units.h"
#include "launch/accept/judge.h"

namespace kintsugi {
namespace {

double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-30); }

// The largest relative difference of two series, infinite if one is shorter or not finite.
double difference(const std::vector<double>& values, const std::vector<double>& expected) {
  if (values.size() != expected.size() || expected.empty()) return INFINITY;
  double most = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]) || !std::isfinite(expected[i])) return INFINITY;
    most = std::max(most, relative(values[i], expected[i]));
  }
  return most;
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::isfinite(value) ? value : 0;
  return sum;
}

std::string ratio_text(double measured, double predicted) {
  return fmt::format("{:.2f}", measured / predicted);
}

}  // namespace

AcceptCheck judge_losses(const std::string& name, const std::string& group, const RunSteps& steps,
                         const RunSteps& one_rank, const AcceptLimits& limits) {
  const double loss = difference(steps.loss, one_rank.loss),
               norm = difference(steps.norm, one_rank.norm);
  AcceptCheck check{.part = "losses",
                    .name = name,
                    .text = fmt::format("losses within {:.1e}, gradient norms within {:.1e} of one "
                                        "rank",
                                        loss, norm)};
  if (loss <= limits.loss && norm <= limits.norm) return check;
  check.verdict = Verdict::Fail;
  check.group = group;
  check.text = fmt::format(
      "losses differ by up to {:.1e}, gradient norms by up to {:.1e} from those of one rank", loss,
      norm);
  check.remedy = fmt::format(
      "do not train in this layout: {}send acceptance.json and the logs to the developers",
      group.empty() ? "" : fmt::format("see the checks of {} groups, and ", group));
  return check;
}

std::optional<double> SpeedFacts::overlap() const {
  if (!(comm_busy_s > 0) || !(comm_wait_s >= 0)) return {};
  return std::clamp(1 - comm_wait_s / comm_busy_s, 0.0, 1.0);
}

AcceptChecks judge_speed(const std::vector<SpeedFacts>& facts, bool gpus,
                         const AcceptLimits& limits) {
  AcceptChecks checks;
  for (const SpeedFacts& one : facts) {
    const std::string name = one.model + ", " + one.layout;
    if (!one.why_not.empty()) {
      checks.push_back(not_measured("speed", name, one.why_not));
      continue;
    }
    AcceptCheck speed{.part = "speed", .name = name, .verdict = Verdict::Noted};
    speed.text = fmt::format("{:.4g} s/step", one.step_s);
    if (one.planned_s > 0) {
      const double ratio = one.step_s / one.planned_s;
      speed.text += fmt::format(", {} of the plan's {:.4g} s",
                                ratio_text(one.step_s, one.planned_s), one.planned_s);
      if (gpus)
        speed.verdict =
            ratio >= limits.faster && ratio <= limits.slower ? Verdict::Pass : Verdict::Fail;
      if (speed.verdict == Verdict::Fail)
        speed.remedy =
            ratio > limits.slower
                ? "compare the checks machine, bandwidth and overlap; if they pass, send "
                  "acceptance.json to the developers: the plan is too fast here"
                : "plan with machine.yaml of this test: the machine is faster than its "
                  "description";
    }
    checks.push_back(speed);
    if (one.planned_bytes <= 0) continue;
    const bool fits = relative(one.memory_bytes, one.planned_bytes) <= limits.memory;
    checks.push_back(
        {.part = "memory",
         .name = name,
         .verdict = !gpus  ? Verdict::Noted
                    : fits ? Verdict::Pass
                           : Verdict::Fail,
         .text = fmt::format("{} on rank 0, {} of the plan's {}", format_bytes(one.memory_bytes),
                             ratio_text(one.memory_bytes, one.planned_bytes),
                             format_bytes(one.planned_bytes)),
         .remedy = gpus && !fits ? "set gpu.own_gb of the machine file to what context "
                                   "and libraries take here"
                                 : ""});
  }
  return checks;
}

Table speed_table(const std::vector<SpeedFacts>& facts) {
  const auto number = [](const char* title, const char* key) {
    return Column::number(title, key, "{:.4g}");
  };
  Table table({Column::text("model", "model"), Column::text("layout", "layout"),
               number("s/step", "step_s"), number("plan", "planned_s"),
               Column::number("ratio", "measured_by_planned", "{:.2f}"),
               number("calibrated", "calibrated_s"),
               Column::number("ratio", "measured_by_calibrated", "{:.2f}"),
               number("tokens/s", "tokens_per_s"), Column::bytes("memory", "memory_bytes"),
               Column::bytes("plan", "planned_bytes"), Column::percent("overlap", "overlap", 0),
               number("exposed s", "exposed_s"), number("plan", "planned_exposed_s"),
               Column::hidden("settings"), Column::text("not measured", "not_measured")});
  const auto positive = [](double value) { return value > 0 ? Cell(value) : Cell::missing(); };
  for (const SpeedFacts& one : facts) {
    const bool planned = one.planned_s > 0 && one.step_s > 0;
    const bool calibrated = one.calibrated_s > 0 && one.step_s > 0;
    table.add({one.model, one.layout, positive(one.step_s), positive(one.planned_s),
               planned ? Cell(one.step_s / one.planned_s) : Cell::missing(),
               positive(one.calibrated_s),
               calibrated ? Cell(one.step_s / one.calibrated_s) : Cell::missing(),
               positive(one.tokens_per_s), positive(one.memory_bytes), positive(one.planned_bytes),
               one.overlap(), positive(one.comm_wait_s), positive(one.planned_exposed_s),
               one.layout_key, Cell::or_missing(one.why_not)});
  }
  return table;
}

AcceptChecks judge_recovery(const RecoveryFacts& facts) {
  const auto make = [](const char* name, bool good, std::string text, const char* remedy) {
    return AcceptCheck{.part = "recovery",
                       .name = name,
                       .verdict = good ? Verdict::Pass : Verdict::Fail,
                       .text = std::move(text),
                       .remedy = good ? "" : remedy};
  };
  AcceptChecks checks;
  if (facts.save_s > 0 && facts.undisturbed.bytes > 0)
    checks.push_back({.part = "recovery",
                      .name = "checkpoint",
                      .verdict = Verdict::Noted,
                      .text = fmt::format("{} in {:.3g} s", format_bytes(facts.undisturbed.bytes),
                                          facts.save_s)});
  if (!facts.why_not.empty()) {
    checks.push_back(not_measured("recovery", "killed rank", facts.why_not));
    return checks;
  }
  const RankFailure failure = facts.noticed ? facts.noticed->failure : RankFailure{};
  const bool lost = failure.kind == FailureKind::Lost;
  const bool named = lost && (facts.killed < 0 || failure.rank() == facts.killed);
  AcceptCheck noticed =
      make("noticed", lost,
           lost ? fmt::format("the run ended {:.1f} s after a rank was killed", facts.notice_s)
                : "the run did not report that a rank was lost",
           "look whether the launcher kills rank 0 before it can report (srun "
           "--kill-on-bad-exit=0, --wait), and send the log");
  noticed.ranks = {facts.killed};
  AcceptCheck culprit = make(
      "named", named,
      named ? fmt::format("rank {} on {}", failure.rank(), failure.node())
            : fmt::format("rank {} was killed, but rank {} is named", facts.killed, failure.rank()),
      "the node ledger would exclude a healthy node: send the log");
  culprit.ranks = {facts.killed};
  culprit.nodes = {failure.node()};
  if (facts.killed < 0) noticed.ranks.clear(), culprit.ranks.clear();
  checks.push_back(noticed);
  checks.push_back(culprit);
  checks.push_back(make(
      "restarted", facts.restarted,
      facts.restarted
          ? fmt::format("from its last checkpoint, {:.3g} s to the first step", facts.restart_s)
          : facts.restart_problem,
      "see the log; a second start must find the checkpoints of the first"));
  if (!facts.restarted) return checks;
  const bool same = facts.recovered.step == facts.undisturbed.step &&
                    !facts.recovered.hashes.empty() &&
                    facts.recovered.hashes == facts.undisturbed.hashes;
  checks.push_back(make("same bits", same,
                        same ? fmt::format("weights and optimizer of step {} are those of an "
                                           "undisturbed run",
                                           facts.recovered.step)
                             : "weights or optimizer differ from those of an undisturbed run",
                        "set comm.deterministic and gpu.deterministic; if it stays, send both "
                        "checkpoints' checksums.json"));
  return checks;
}

AcceptChecks judge_energy(const std::string& name, const RunSteps& steps, int gpus,
                          const GpuSpec& gpu) {
  constexpr double kTolerance = 1.1;
  const double seconds = sum_of(steps.step_s), gpu_j = sum_of(steps.gpu_j),
               node_j = sum_of(steps.node_j);
  if (seconds <= 0) return {not_measured("energy", "meters", "no training was measured")};
  if (gpu_j <= 0 && node_j <= 0)
    return {not_measured("energy", "meters",
                         "no meter of GPUs or nodes was found (docs/energy.md lists them)")};
  AcceptChecks checks;
  std::string found = name;
  if (gpu_j > 0) found += fmt::format(", GPUs {:.4g} W", gpu_j / seconds);
  if (node_j > 0) found += fmt::format(", nodes {:.4g} W", node_j / seconds);
  checks.push_back({.part = "energy", .name = "meters", .text = found});
  if (gpu_j > 0 && node_j > 0)
    checks.push_back(
        {.part = "energy",
         .name = "GPUs and nodes",
         .verdict = gpu_j <= kTolerance * node_j ? Verdict::Pass : Verdict::Fail,
         .text = fmt::format("GPUs take {:.0f} % of the nodes' energy", 100 * gpu_j / node_j),
         .remedy = gpu_j <= kTolerance * node_j
                       ? ""
                       : "one of the two counters is wrong: compare both with the site's"});
  if (gpu_j > 0 && gpus > 0 && gpu.tdp_w > 0) {
    const double each = gpu_j / seconds / gpus;
    const bool plausible = each >= gpu.idle_w / kTolerance && each <= gpu.tdp_w * kTolerance;
    checks.push_back({.part = "energy",
                      .name = "power of a GPU",
                      .verdict = plausible ? Verdict::Pass : Verdict::Fail,
                      .text = fmt::format("{:.4g} W, between {:.4g} W idle and {:.4g} W at most",
                                          each, gpu.idle_w, gpu.tdp_w),
                      .remedy = plausible ? "" : "compare with nvidia-smi, rocm-smi or the site"});
  }
  return checks;
}

}  // namespace kintsugi
