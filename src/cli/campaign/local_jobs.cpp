#include "cli/campaign/local_jobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/campaign/campaign_jobs.h"
#include "cli/launch/submit.h"
#include "core/child_output.h"
#include "core/error.h"
#include "core/log.h"
#include "launch/child_session.h"
#include "train/run_lock.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using TaskViews = std::vector<TaskView>;

constexpr auto kLookAtOthers = std::chrono::seconds(1);

// A job that this process has started.
struct LocalJob {
  std::size_t task = 0;
  pid_t process = 0;
  PreparedRuns runs = {};  // with the lock of the run
  fs::path session = {};   // of its mpirun; empty: it has none of its own
};

// By ranks, for example, whose supervisor was killed.
bool is_in_use(const fs::path& run_dir) {
  try {
    RunLock::for_launch(run_dir);
    return false;
  } catch (const UserError&) {
    return true;
  }
}

// What is left when nothing more can begin.
int end_of_campaign(const Campaign& campaign, const TaskViews& views) {
  std::int64_t done = 0;
  std::vector<std::string> left;
  for (std::size_t task = 0; task < views.size(); ++task)
    if (views[task].ended())
      ++done;
    else if (views[task].state != TaskState::Blocked && views[task].state != TaskState::Waiting)
      left.push_back(fmt::format("{} is {}", campaign.name_of(task), to_string(views[task].state)));
  if (done == static_cast<std::int64_t>(views.size())) {
    log_note("the campaign in {} is done", campaign.directory().string());
    return exit_code::kFinished;
  }
  failure("{} of {} jobs of the campaign are done; {}", done, views.size(), fmt::join(left, ", "));
}

class LocalCampaign {
 public:
  LocalCampaign(const Campaign& campaign, const CampaignPlan& plan, std::int64_t most)
      : campaign_(campaign), plan_(plan), most_(static_cast<std::size_t>(most)) {}

  int run() {
    for (;;) {
      stopping_ = stopping_ || fs::exists(campaign_stop_file(campaign_.directory()));
      if (!stopping_) start_what_can_begin();
      if (jobs_.empty() && stopping_) return exit_code::kStopped;
      if (jobs_.empty() && others_.empty()) break;
      wait_for_change();
    }
    if (!obstacle_.empty()) user_error("{}", obstacle_);
    return end_of_campaign(campaign_, look_at_tasks(campaign_.graph));
  }

 private:
  bool is_ours(std::size_t task) const {
    return std::any_of(jobs_.begin(), jobs_.end(),
                       [&](const LocalJob& job) { return job.task == task; });
  }

  // What a killed command of this campaign has left, jobs of Slurm, and runs whose ranks still
  // save.
  bool is_others(std::size_t task, const TaskView& view) const {
    if (is_ours(task)) return false;
    return view.active() || (campaign_.kind_of(task) == CampaignNodeKind::Run && view.run &&
                             !view.ended() && is_in_use(campaign_.directory_of(task)));
  }

  void look_for_others(const TaskViews& views) {
    std::set<std::size_t> before = std::move(others_);
    others_.clear();
    for (std::size_t task = 0; task < views.size(); ++task)
      if (is_others(task, views[task])) others_.insert(task);
    for (const std::size_t task : others_)
      if (!before.contains(task))
        log_note("waits for {}, which still runs", campaign_.name_of(task));
  }

  std::optional<std::size_t> next_task(const TaskViews& views) const {
    for (std::size_t task = 0; task < views.size(); ++task)
      if (campaign_.kind_of(task) != CampaignNodeKind::Best && can_begin(views[task].state) &&
          !tried_.contains(task) && !others_.contains(task) &&
          missing_need(campaign_.graph, task, views).empty())
        return task;
    return {};
  }

  void start_what_can_begin() {
    TaskViews views = look_at_tasks(campaign_.graph);
    for (const LocalJob& job : jobs_) views[job.task].state = TaskState::Running;
    look_for_others(views);
    make_choices(campaign_, views);
    obstacle_.clear();
    while (jobs_.size() + others_.size() < most_) {
      const auto task = next_task(views);
      if (!task) return;
      const std::string over =
          over_budget(campaign_, *task, plan_.tasks[*task].forecast.most_gpu_hours(), views);
      if (!over.empty()) {
        obstacle_ = fmt::format("{} was not started because of {}", campaign_.name_of(*task), over);
        return;
      }
      if (!program_is_there()) return;
      views[*task].plan = record_of(campaign_, *task, plan_);
      views[*task].state = begin(*task) ? TaskState::Running : TaskState::Failed;
    }
  }

  // Somebody may have removed it. That is no mistake of the job.
  bool program_is_there() {
    try {
      return !own_program().empty();
    } catch (const UserError& error) {
      obstacle_ = error.what();
      return false;
    }
  }

  // Returns false if it cannot begin.
  bool begin(std::size_t task) {
    tried_.insert(task);
    save_plan(campaign_.directory(), campaign_.name_of(task), record_of(campaign_, task, plan_));
    log_note("{}: begins", campaign_.name_of(task));
    try {
      start(task);
      return true;
    } catch (const UserError& error) {
      log_message(LogLevel::Error, error.what());
      fail_task(campaign_, task, error.what());
      return false;
    }
  }

  void start(std::size_t task) {
    LocalJob job{.task = task};
    fs::path script;
    if (campaign_.kind_of(task) == CampaignNodeKind::Command) {
      script = begin_command(campaign_, task);
    } else {
      job.runs.list =
          std::move(prepare_task(campaign_, task, PrepareFor::Start, campaign_.choices()).list);
      script = write_local_run(job.runs.list.front());
    }
    Variables variables;
    if (most_ > 1) {
      job.session = mpi_session_folder(fmt::format("campaign-{}", task));
      // Several mpirun would bind their ranks to the same cores.
      variables = {{kMpiSessionVariable, job.session.string()},
                   {"OMPI_MCA_hwloc_base_binding_policy", "none"}};
    }
    job.process = scripts_.start(script, variables);
    RunLock::end_pass_on();
    jobs_.push_back(std::move(job));
  }

  // Until a job has ended, or it is time to look again.
  void wait_for_change() {
    const auto again = Clock::now() + kLookAtOthers;
    while (others_.empty() || Clock::now() < again) {
      if (const auto ended = scripts_.poll()) return finish(*ended);
      if (!stopping_ && fs::exists(campaign_stop_file(campaign_.directory()))) return;
    }
  }

  void finish(const Scripts::Ended& ended) {
    const auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const LocalJob& one) {
      return one.process == ended.process;
    });
    const std::size_t task = job->task;
    const bool command = campaign_.kind_of(task) == CampaignNodeKind::Command;
    const int code = command ? end_command(campaign_, task, ended.code) : ended.code;
    std::error_code ignored;
    if (!job->session.empty()) fs::remove_all(job->session, ignored);
    jobs_.erase(job);
    if (code == exit_code::kStopped)
      stopping_ = true;
    else if (code != exit_code::kFinished)
      log_warning("{} ended with exit code {}", campaign_.name_of(task), code);
  }

  const Campaign& campaign_;
  const CampaignPlan& plan_;
  std::size_t most_;
  Scripts scripts_;
  std::list<LocalJob> jobs_;
  std::set<std::size_t> tried_;   // by this command
  std::set<std::size_t> others_;  // that run, started by others
  std::string obstacle_;          // why nothing more must begin
  bool stopping_ = false;
};

}  // namespace

int run_campaign_here(const Campaign& campaign, const CampaignPlan& plan, std::int64_t most) {
  return LocalCampaign(campaign, plan, most).run();
}

}  // namespace kintsugi
