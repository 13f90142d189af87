#pragma once

#include <cstdint>

#include "cli/campaign/campaign.h"
#include "cli/campaign/campaign_plan.h"

namespace kintsugi {

// Runs what is missing on this machine, up to `most` jobs at the same time. A job that cannot begin
// because of a mistake has failed; what does not follow from it goes on. Returns the exit code of
// the command.
int run_campaign_here(const Campaign& campaign, const CampaignPlan& plan, std::int64_t most);

}  // namespace kintsugi
