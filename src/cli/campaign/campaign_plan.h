#pragma once

#include <string>
#include <vector>

#include "cli/campaign/campaign.h"
#include "cli/campaign/forecast.h"

namespace kintsugi {

// What a task will need.
struct PlannedTask {
  bool open = false;  // it has neither ended nor failed
  TaskForecast forecast = {};
  std::int64_t gpus = 0;  // that it uses, or ranks
  // Of a run that could be checked:
  bool checked = false, validates = false, experts = false;
  std::int64_t steps = 0, checkpoint_every = 0, keep_checkpoints = 0, keep_every = 0;
};

struct CampaignPlan {
  std::vector<PlannedTask> tasks = {};  // as in the graph
  double gpu_hours = 0, most_gpu_hours = 0;
  double kwh = 0;
  std::string kwh_of = {};  // "GPUs"; empty: unknown
  double days = 0;          // of the longest path; on this machine: of all
};

// Checks every open task as kintsugi launch does, with every run that `best` may
// choose, and predicts what it needs. UserError for the first mistake.
CampaignPlan plan_campaign(const Campaign& campaign, const std::vector<TaskView>& views);

// The plan as a table, with sums.
std::string plan_text(const Campaign& campaign, const CampaignPlan& plan,
                      const std::vector<TaskView>& views);

// What a task must not exceed: empty, or why it does.
std::string over_budget(const Campaign& campaign, std::size_t task, double most_gpu_hours,
                        const std::vector<TaskView>& views);
// UserError if the whole rest would exceed it.
void check_budget(const Campaign& campaign, const CampaignPlan& plan,
                  const std::vector<TaskView>& views);
// Asks at a terminal. UserError without one, or if the answer is no.
void confirm_plan();

}  // namespace kintsugi
