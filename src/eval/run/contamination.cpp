#include "eval/run/contamination.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>
#include <variant>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {
namespace {

// The question with the right answer, and with the others.
ReferenceSample reference_of(const EvalTask& task, const DocumentRequests& requests) {
  ReferenceSample reference{.task = task.name, .sample = {}, .text = {}};
  const auto text_of = [](const EvalRequest& request, const std::string& answer) {
    return request.context + " " + answer;
  };
  const auto* const right = std::get_if<std::int64_t>(&requests.gold);
  for (std::size_t i = 0; i < requests.requests.size(); ++i) {
    const EvalRequest& request = requests.requests[i];
    const std::string text =
        text_of(request, request.continuation.empty() && !requests.targets.empty()
                             ? requests.targets.front()
                             : request.continuation);
    const bool is_main = right == nullptr || requests.choices.empty()
                             ? i == 0
                             : static_cast<std::int64_t>(i) == *right;
    if (is_main)
      reference.text = text;
    else
      reference.others.push_back(text);
  }
  return reference;
}

}  // namespace

std::vector<ReferenceSample> reference_samples(EvalTask task, const TaskDocuments& documents) {
  task.shots = 0;
  task.format.description.clear();
  FewShotSampler none(task, {});
  std::vector<ReferenceSample> samples;
  for (std::size_t i = 0; i < documents.documents.size(); ++i) {
    samples.push_back(reference_of(task, make_requests(task, documents.documents[i], none)));
    samples.back().sample = documents.where(i);
  }
  return samples;
}

std::int64_t TaskContamination::clean() const {
  return std::count(found.begin(), found.end(), false);
}

ContaminationReports::ContaminationReports(const std::vector<std::filesystem::path>& paths) {
  for (const std::filesystem::path& path : paths) {
    std::optional<CurationRecord> record = read_curation_record(path);
    if (!record) user_error("{} does not exist: name the curation.json of a corpus", path.string());
    if (!record->all_written)
      user_error("{} is of a curation that has not ended: continue it first", path.string());
    Report& report = reports_.emplace_back();
    report.path = path.string();
    for (StepReport& step : record->report.steps)
      if (!step.tasks.empty()) report.steps.push_back(std::move(step));
    if (report.steps.empty())
      user_error(
          "{}: this curation did not look for questions of tasks, or an earlier version wrote it: "
          "curate with a step decontaminate",
          path.string());
  }
}

const StepReport& ContaminationReports::step_for(const Report& report, const std::string& task,
                                                 const std::string& hash) const {
  std::vector<std::string> names;
  bool has_task = false;
  for (const StepReport& step : report.steps)
    for (const auto& [name, searched] : step.tasks) {
      if (name == task && searched.hash == hash) return step;
      has_task |= name == task;
      names.push_back(name);
    }
  if (has_task)
    user_error(
        "{} looked for other questions of {} than its files have now: curate again with this task "
        "file and these data",
        report.path, task);
  user_error(
      "{} did not look for the questions of {}, but for those of {}: curate again, or leave "
      "the task out",
      report.path, task, fmt::join(names, ", "));
}

TaskContamination ContaminationReports::of(const EvalTask& task, const TaskDocuments& documents,
                                           std::size_t evaluated) const {
  std::vector<std::uint64_t> hashes;
  for (const ReferenceSample& sample : reference_samples(task, documents))
    hashes.push_back(sample.hash());
  const std::string hash = hash_of_samples(hashes);
  std::unordered_set<std::string> found;
  TaskContamination result;
  for (const Report& report : reports_) {
    const StepReport& step = step_for(report, task.name, hash);
    for (const auto& [name, leak] : step.leaks) found.insert(leak.hash);
    const SearchedTask& searched = step.tasks.at(task.name);
    result.out_of_reach = std::max(result.out_of_reach, searched.too_short + searched.common);
  }
  for (std::size_t i = 0; i < evaluated; ++i)
    result.found.push_back(found.contains(hex64(hashes.at(i))));
  return result;
}

std::vector<std::string> ContaminationReports::with_removed_documents() const {
  std::vector<std::string> paths;
  for (const Report& report : reports_)
    if (std::ranges::any_of(report.steps, [](const StepReport& step) {
          return step.removed.contains(std::string(kContaminatedRule));
        }))
      paths.push_back(report.path);
  return paths;
}

}  // namespace kintsugi
