#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/campaign/campaign.h"
#include "cli/campaign/campaign_plan.h"

namespace kintsugi {

// Submits what is missing and not in the queue, each job behind those that it needs. Returns the
// exit code of the command.
int submit_campaign(const Campaign& campaign, const CampaignPlan& plan,
                    const std::vector<TaskView>& views);

// What the campaign writes about a task before it begins.
TaskPlan record_of(const Campaign& campaign, std::size_t task, const CampaignPlan& plan);
// Whether it is missing and not under way.
bool can_begin(TaskState state);

// Prepares an empty directory for a command. Returns its script.
std::filesystem::path begin_command(const Campaign& campaign, std::size_t task);
// Its exit code as that of a task, from that of its script. Shows the end of the output of a failed
// one.
int end_command(const Campaign& campaign, std::size_t task, int code);

// In the job of a task, before it begins: makes choices, checks that what it needs has ended and
// that the budget suffices, and writes the configuration of a run. Failure if it must not begin.
void enter_task(const std::filesystem::path& directory, const std::string& name);
// The same, then a command itself. Returns its exit code.
int perform_task(const std::filesystem::path& directory, const std::string& name);

}  // namespace kintsugi
