#include "report/profile/profile_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/table.h"
#include "core/units.h"
#include "report/profile/profile_file.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kOperationRows = 25, kChangeRows = 20, kRankRows = 16, kGapRows = 5,
                      kIdleRows = 8, kLayerRows = 40;
constexpr std::size_t kNameWidth = 48;

std::string ms(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }
std::string share_text(double part, double whole) {
  return fmt::format("{:.1f} %", whole > 0 ? 100 * part / whole : 0.0);
}
Column ms_column(std::string title, std::string key) {
  return Column::number(std::move(title), std::move(key), "{:.3f}");
}

// Missing where it is not positive, which means unknown.
Cell known(double value) { return value > 0 ? Cell(value) : Cell::missing(); }

// For people the name is cut to the width of its column, in bytes.
Cell name_cell(const std::string& name) {
  if (name.empty()) return {name, "(none)"};
  return name.size() <= kNameWidth ? Cell(name)
                                   : Cell(name, name.substr(0, kNameWidth - 3) + "...");
}

Json milliseconds_by_name(const std::map<std::string, double>& seconds) {
  Json result = Json::object();
  for (const auto& [name, value] : seconds) result[name] = 1e3 * value;
  return result;
}

// ---- the tables, for people and as lists of JSON

Table category_table(const TimeBreakdown& breakdown) {
  Table table({Column::text("time of a step", "name"), ms_column("ms", "ms"),
               Column::percent("share", "share")});
  for (const TimeCategory category : kAllCategories)
    table.add({to_string(category), 1e3 * breakdown[category], breakdown.share(category)});
  return table;
}

Table rank_table(const ProfileAnalysis& analysis) {
  Table table({Column::text("rank"), Column::hidden("rank"), Column::hidden("coordinates"),
               Column::hidden("steps"), ms_column("ms", "step_ms"), Column::percent("Kernel"),
               Column::percent("Communication"), Column::percent("idle"),
               Column::hidden("categories"), Column::hidden("overlap_ms"),
               Column::hidden("utilisation")});
  for (const RankTrace& rank : analysis.ranks) {
    std::vector<StepBreakdown> own;
    for (const StepBreakdown& step : analysis.steps)
      if (step.rank == rank.rank) own.push_back(step);
    const TimeBreakdown mean = mean_breakdown(own);
    Json categories = Json::object();
    for (const TimeCategory category : kAllCategories)
      categories[std::string(to_string(category))] = 1e3 * mean[category];
    table.add({fmt::format("{}: {}", rank.rank, rank.coordinates), rank.rank, rank.coordinates,
               own.size(), 1e3 * mean.wall_s, mean.share(TimeCategory::Kernel),
               mean.share(TimeCategory::Communication),
               mean.wall_s > 0 ? mean.idle_s() / mean.wall_s : 0, categories, 1e3 * mean.overlap_s,
               mean.utilisation()});
  }
  return table;
}

std::string rate_text(const OperationTotal& one) {
  if (one.work == WorkKind::Matmul || one.work == WorkKind::Attention)
    return format_si(one.flops_per_s()) + "FLOP/s";
  return one.bytes > 0 ? format_si(one.bytes_per_s()) + "B/s" : "";
}

Table operation_table(const ProfileAnalysis& analysis) {
  Table table(
      {Column::text("operation (per step)", "name"), Column::hidden("work"),
       Column::hidden("dtype"), Column::hidden("phase"), Column::hidden("phases"),
       Column::number("calls", "calls", "{:.4g}"), ms_column("ms", "ms"),
       Column::percent("share", "share"), Column::number("rate"), Column::hidden("flops_per_s"),
       Column::hidden("bytes_per_s"), Column::hidden("intensity"), Column::hidden("attainable"),
       Column::percent("of attainable", "efficiency")},
      "");
  for (const OperationTotal& one : analysis.operations.operations)
    table.add({name_cell(one.name), to_string(one.work), one.dtype, one.main_phase(),
               milliseconds_by_name(one.phases), one.calls, 1e3 * one.seconds,
               one.seconds / analysis.step_s(), rate_text(one), one.flops_per_s(),
               one.bytes_per_s(), one.intensity(), known(attainable(one, analysis.facts)),
               known(efficiency(one, analysis.facts))});
  return table;
}

Table phase_table(const ProfileAnalysis& analysis) {
  Table table({Column::text("phase", "name"), Column::hidden("calls"), ms_column("ms", "ms"),
               Column::percent("share", "share")});
  for (const PartTotal& one : analysis.operations.phases)
    table.add({name_cell(one.name), one.calls, 1e3 * one.seconds, one.seconds / analysis.step_s()});
  return table;
}

Table layer_table(const ProfileAnalysis& analysis) {
  Table table({Column::text("layer", "name"), Column::hidden("calls"), ms_column("ms", "ms"),
               Column::percent("share", "share"), Column::text("by phase", "phases")});
  for (const PartTotal& one : analysis.operations.layers) {
    std::string phases;
    for (const auto& [name, seconds] : one.phases)
      phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", name, ms(seconds));
    table.add({name_cell(one.name),
               one.calls,
               1e3 * one.seconds,
               one.seconds / analysis.step_s(),
               {milliseconds_by_name(one.phases), phases}});
  }
  return table;
}

Table term_table(const StepTerms& terms) {
  Table table({Column::hidden("name"), Column::hidden("ms")});
  for (const auto& [name, seconds] : named_terms(terms)) table.add({name, 1e3 * seconds});
  return table;
}

Table prediction_table(const ProfileAnalysis& analysis, const PredictedStep& predicted) {
  const auto measured = named_terms(analysis.terms), expected = named_terms(predicted.terms);
  Table table({Column::text("term", "name"), ms_column("measured ms", "measured_ms"),
               ms_column("predicted ms", "predicted_ms"),
               Column::number("measured/predicted", "", "{:.2f}")},
              "");
  for (std::size_t i = 0; i < measured.size(); ++i)
    table.add(
        {measured[i].first, 1e3 * measured[i].second, 1e3 * expected[i].second,
         expected[i].second > 0 ? Cell(measured[i].second / expected[i].second) : Cell::missing()});
  return table;
}

std::string change_text(double before, double after) {
  return before > 0 ? fmt::format("{:+.1f} %", 100 * (after - before) / before) : "";
}

Table category_changes(const ProfileDiff& diff) {
  Table table({Column::text("category", "name"), ms_column("before ms", "before_ms"),
               ms_column("after ms", "after_ms"), Column::number("delta ms", "delta_ms", "{:+.3f}"),
               Column::number("delta")});
  for (const TimeCategory category : kAllCategories) {
    const auto& [before, after] = diff.categories[static_cast<std::size_t>(category)];
    table.add({to_string(category), 1e3 * before, 1e3 * after, 1e3 * (after - before),
               change_text(before, after)});
  }
  return table;
}

Table operation_changes(const ProfileDiff& diff) {
  Table table({Column::text("operation (per step)", "name"), Column::text("", "change"),
               Column::hidden("calls_before"), Column::hidden("calls_after"),
               Column::number("calls"), ms_column("before ms", "before_ms"),
               ms_column("after ms", "after_ms"), Column::number("delta ms", "delta_ms", "{:+.3f}"),
               Column::number("delta")});
  for (const OperationChange& one : diff.operations)
    table.add({name_cell(one.name), to_string(one.kind), one.calls_before, one.calls_after,
               one.calls_before == one.calls_after
                   ? fmt::format("{:.4g}", one.calls_after)
                   : fmt::format("{:.4g} -> {:.4g}", one.calls_before, one.calls_after),
               1e3 * one.before_s, 1e3 * one.after_s, 1e3 * one.delta_s(),
               change_text(one.before_s, one.after_s)});
  return table;
}

// ---- text

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

std::string category_text(const ProfileAnalysis& analysis) {
  const TimeBreakdown& mean = analysis.mean;
  Table table = category_table(mean);
  table.add({"sum", 1e3 * mean.wall_s, {nullptr, ""}});
  std::string text = fmt::format("\n{}kernels run {} of the time", table.text(),
                                 share_text(mean.utilisation(), 1));
  if (mean.multiprocessor_efficiency() > 0)
    text += fmt::format(", on {} of the multiprocessors (estimated)",
                        share_text(mean.multiprocessor_efficiency(), 1));
  if (mean.overlap_s > 0)
    text += fmt::format("; {} ms of them overlap with communication", ms(mean.overlap_s));
  return text + "\n";
}

std::string operation_text(const ProfileAnalysis& analysis) {
  const auto& all = analysis.operations.operations;
  double rest_s = 0;
  for (std::size_t i = kOperationRows; i < all.size(); ++i) rest_s += all[i].seconds;
  const std::string text = "\n" + operation_table(analysis).text({.most_rows = kOperationRows});
  return rest_s > 0 ? fmt::format("{}the others take {} ms ({})\n", text, ms(rest_s),
                                  share_text(rest_s, analysis.step_s()))
                    : text;
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

// ---- JSON

Json gap_list(const IdleTime& idle) {
  Json result = Json::array();
  for (const IdleGap& gap : idle.longest)
    result.push_back({{"rank", gap.rank},
                      {"step", gap.step},
                      {"begin_ms", 1e3 * gap.begin_s},
                      {"ms", 1e3 * gap.seconds},
                      {"host", gap.host},
                      {"before", gap.before},
                      {"after", gap.after}});
  return result;
}

Json idle_json(const ProfileAnalysis& analysis) {
  Json hosts = Json::array();
  for (const auto& [host, seconds] : analysis.idle.hosts)
    hosts.push_back({{"host", host}, {"ms", 1e3 * seconds}});
  return {{"ms", 1e3 * analysis.idle.seconds},
          {"share", analysis.idle.seconds / analysis.step_s()},
          {"gaps", analysis.idle.gaps},
          {"hosts", hosts}};
}

Json mean_exposure(const Exposure& sum, double steps) {
  return {{"ms", 1e3 * sum.communication_s / steps},
          {"exposed_ms", 1e3 * sum.exposed_s / steps},
          {"waiting_ms", 1e3 * sum.waiting_s / steps},
          {"hidden_share", sum.hidden_share()},
          {"bytes", static_cast<double>(sum.bytes) / steps}};
}

Json communication_json(const std::vector<StepExposure>& exposures) {
  const StepExposure sums = sum_of(exposures);
  const double steps = static_cast<double>(exposures.size());
  Json result = mean_exposure(sums.all, steps);
  result["groups"] = Json::object();
  for (const auto& [name, sum] : sums.groups) result["groups"][name] = mean_exposure(sum, steps);
  return result;
}

}  // namespace

std::string profile_text(const ProfileAnalysis& analysis) {
  std::string text = heading(analysis) + category_text(analysis);
  if (analysis.ranks.size() > 1) text += "\n" + rank_table(analysis).text({.most_rows = kRankRows});
  text += operation_text(analysis) + "\n" + phase_table(analysis).text() + "\n" +
          layer_table(analysis).text({.most_rows = kLayerRows}) + idle_text(analysis) + "\n";
  for (const std::string& line : exposure_lines(analysis.exposures)) text += line + "\n";
  for (const std::string& hint : analysis.hints) text += "hint: " + hint + "\n";
  return text;
}

std::string prediction_text(const ProfileAnalysis& analysis, const PredictedStep& predicted) {
  return fmt::format("\n{}predicted for {}\n", prediction_table(analysis, predicted).text(),
                     predicted.machine);
}

std::string diff_text(const ProfileDiff& diff) {
  return fmt::format("{}\n\n{}\n{}", diff.headline(),
                     operation_changes(diff).text({.most_rows = kChangeRows}),
                     category_changes(diff).text());
}

Json profile_json(const ProfileAnalysis& analysis) {
  const ProfileFacts& facts = analysis.facts;
  const TimeBreakdown& mean = analysis.mean;
  Json trainer = Json::array();
  for (const double seconds : facts.step_s) trainer.push_back(1e3 * seconds);
  return {{"steps", {facts.first_step, facts.last_step}},
          {"step_ms", 1e3 * mean.wall_s},
          {"trainer_step_ms", trainer},
          {"run_ranks", facts.ranks},
          {"device", facts.device},
          {"precision", facts.precision},
          {"peak_flops", known(facts.peak_flops).value},
          {"memory_bytes_per_s", known(facts.memory_bytes_per_s).value},
          {"ranks", rank_table(analysis).json()},
          {"categories", category_table(mean).json()},
          {"overlap_ms", 1e3 * mean.overlap_s},
          {"utilisation", mean.utilisation()},
          {"multiprocessor_efficiency", known(mean.multiprocessor_efficiency()).value},
          {"operations", operation_table(analysis).json()},
          {"phases", phase_table(analysis).json()},
          {"layers", layer_table(analysis).json()},
          {"idle", idle_json(analysis)},
          {"gaps", gap_list(analysis.idle)},
          {"communication", communication_json(analysis.exposures)},
          {"terms", term_table(analysis.terms).json()},
          {"hints", analysis.hints}};
}

Json prediction_json(const ProfileAnalysis& analysis, const PredictedStep& predicted) {
  return {{"machine", predicted.machine}, {"terms", prediction_table(analysis, predicted).json()}};
}

Json diff_json(const ProfileDiff& diff) {
  return {{"headline", diff.headline()},
          {"before_ms", 1e3 * diff.before_s},
          {"after_ms", 1e3 * diff.after_s},
          {"categories", category_changes(diff).json()},
          {"operations", operation_changes(diff).json()}};
}

std::string profile_page_json(const std::filesystem::path& path) {
  // Reading takes about a second and 200 MB per 40 MB of JSON.
  const ProfileLimit limit{
      .bytes = 64 << 20,
      .remedy = "too much for a page, see kintsugi report --profile " + path.string()};
  const FileText file = read_run_file(path, limit.bytes + 1);
  if (!file.stamp || !file.problem.empty())
    user_error("{} {}: {}", path.string(), file.problem.empty() ? "is gone" : file.problem,
               limit.remedy);
  return profile_json(
             analyze(unpack_profile(file.text, path.string(), limit), path.filename().string()))
      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kintsugi
