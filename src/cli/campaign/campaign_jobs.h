#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/campaign/campaign.h"
#include "cli/campaign/campaign_plan.h"

namespace kintsugi {

// Runs what is missing on this machine, one task after the other. Returns the exit code of the
// command.
int run_campaign_here(const Campaign& campaign, const CampaignPlan& plan,
                      std::vector<TaskView> views);

// Submits what is missing and not in the queue, each job behind those that it needs.
void submit_campaign(const Campaign& campaign, const CampaignPlan& plan,
                     const std::vector<TaskView>& views);

// In the job of a task, before it begins: makes choices, checks that what it needs has ended and
// that the budget suffices, and writes the configuration of a run. Failure if it must not begin.
void enter_task(const std::filesystem::path& directory, const std::string& name);
// The same, then a command itself. Returns its exit code.
int perform_task(const std::filesystem::path& directory, const std::string& name);

}  // namespace kintsugi
