#include <map>

#include "core/error.h"
#include "report/profile/profile_file.h"
#include "report/profile/profile_output.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

Json milliseconds_by_name(const std::map<std::string, double>& seconds) {
  Json result = Json::object();
  for (const auto& [name, value] : seconds) result[name] = 1e3 * value;
  return result;
}

Json known(double value) { return value > 0 ? Json(value) : Json(nullptr); }

Json category_object(const TimeBreakdown& breakdown) {
  Json result = Json::object();
  for (const TimeCategory category : kAllCategories)
    result[std::string(to_string(category))] = 1e3 * breakdown[category];
  return result;
}

Json category_list(const TimeBreakdown& breakdown) {
  Json result = Json::array();
  for (const TimeCategory category : kAllCategories)
    result.push_back({{"name", to_string(category)},
                      {"ms", 1e3 * breakdown[category]},
                      {"share", breakdown.share(category)}});
  return result;
}

Json rank_list(const ProfileAnalysis& analysis) {
  Json result = Json::array();
  for (const RankTrace& rank : analysis.ranks) {
    std::vector<StepBreakdown> own;
    for (const StepBreakdown& step : analysis.steps)
      if (step.rank == rank.rank) own.push_back(step);
    const TimeBreakdown mean = mean_breakdown(own);
    result.push_back({{"rank", rank.rank},
                      {"coordinates", rank.coordinates},
                      {"steps", own.size()},
                      {"step_ms", 1e3 * mean.wall_s},
                      {"categories", category_object(mean)},
                      {"overlap_ms", 1e3 * mean.overlap_s},
                      {"utilisation", mean.utilisation()}});
  }
  return result;
}

Json operation_list(const ProfileAnalysis& analysis) {
  Json result = Json::array();
  for (const OperationTotal& one : analysis.operations.operations)
    result.push_back({{"name", one.name},
                      {"work", to_string(one.work)},
                      {"dtype", one.dtype},
                      {"phase", one.main_phase()},
                      {"phases", milliseconds_by_name(one.phases)},
                      {"calls", one.calls},
                      {"ms", 1e3 * one.seconds},
                      {"share", one.seconds / analysis.step_s()},
                      {"flops_per_s", one.flops_per_s()},
                      {"bytes_per_s", one.bytes_per_s()},
                      {"intensity", one.intensity()},
                      {"attainable", known(attainable(one, analysis.facts))},
                      {"efficiency", known(efficiency(one, analysis.facts))}});
  return result;
}

Json layer_list(const ProfileAnalysis& analysis) {
  Json result = Json::array();
  for (const LayerTotal& one : analysis.operations.layers)
    result.push_back({{"name", one.name},
                      {"calls", one.calls},
                      {"ms", 1e3 * one.seconds},
                      {"share", one.seconds / analysis.step_s()},
                      {"phases", milliseconds_by_name(one.phases)}});
  return result;
}

Json phase_list(const ProfileAnalysis& analysis) {
  Json result = Json::array();
  for (const PhaseTotal& one : analysis.operations.phases)
    result.push_back({{"name", one.name},
                      {"calls", one.calls},
                      {"ms", 1e3 * one.seconds},
                      {"share", one.seconds / analysis.step_s()}});
  return result;
}

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
  Exposure all;
  std::map<std::string, Exposure> groups;
  for (const StepExposure& step : exposures) {
    all += step.all;
    for (const auto& [name, exposure] : step.groups) groups[name] += exposure;
  }
  const double steps = static_cast<double>(exposures.size());
  Json result = mean_exposure(all, steps);
  result["groups"] = Json::object();
  for (const auto& [name, sum] : groups) result["groups"][name] = mean_exposure(sum, steps);
  return result;
}

Json term_list(const StepTerms& terms) {
  Json result = Json::array();
  for (const auto& [name, seconds] : named_terms(terms))
    result.push_back({{"name", name}, {"ms", 1e3 * seconds}});
  return result;
}

}  // namespace

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
          {"peak_flops", known(facts.peak_flops)},
          {"memory_bytes_per_s", known(facts.memory_bytes_per_s)},
          {"ranks", rank_list(analysis)},
          {"categories", category_list(mean)},
          {"overlap_ms", 1e3 * mean.overlap_s},
          {"utilisation", mean.utilisation()},
          {"multiprocessor_efficiency", known(mean.multiprocessor_efficiency())},
          {"operations", operation_list(analysis)},
          {"phases", phase_list(analysis)},
          {"layers", layer_list(analysis)},
          {"idle", idle_json(analysis)},
          {"gaps", gap_list(analysis.idle)},
          {"communication", communication_json(analysis.exposures)},
          {"terms", term_list(analysis.terms)},
          {"hints", analysis.hints}};
}

Json prediction_json(const ProfileAnalysis& analysis, const PredictedStep& predicted) {
  Json terms = Json::array();
  const auto measured = named_terms(analysis.terms), expected = named_terms(predicted.terms);
  for (std::size_t i = 0; i < measured.size(); ++i)
    terms.push_back({{"name", measured[i].first},
                     {"measured_ms", 1e3 * measured[i].second},
                     {"predicted_ms", 1e3 * expected[i].second}});
  return {{"machine", predicted.machine}, {"terms", terms}};
}

Json diff_json(const ProfileDiff& diff) {
  Json categories = Json::array(), operations = Json::array();
  for (const TimeCategory category : kAllCategories) {
    const auto& [before, after] = diff.categories[static_cast<std::size_t>(category)];
    categories.push_back({{"name", to_string(category)},
                          {"before_ms", 1e3 * before},
                          {"after_ms", 1e3 * after},
                          {"delta_ms", 1e3 * (after - before)}});
  }
  for (const OperationChange& one : diff.operations)
    operations.push_back({{"name", one.name},
                          {"change", to_string(one.kind)},
                          {"calls_before", one.calls_before},
                          {"calls_after", one.calls_after},
                          {"before_ms", 1e3 * one.before_s},
                          {"after_ms", 1e3 * one.after_s},
                          {"delta_ms", 1e3 * one.delta_s()}});
  return {{"headline", diff.headline()},
          {"before_ms", 1e3 * diff.before_s},
          {"after_ms", 1e3 * diff.after_s},
          {"categories", categories},
          {"operations", operations}};
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
