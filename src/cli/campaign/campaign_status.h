#pragma once

#include <string>
#include <vector>

#include "cli/campaign/campaign.h"

namespace kintsugi {

// The campaign as a tree, with the progress of its runs and its budget.
std::string status_text(const Campaign& campaign, const std::vector<TaskView>& views);

// Asks what runs to save and stop, and removes what waits from the queue. UserError if there is
// nothing to cancel.
void cancel_campaign(const Campaign& campaign, const std::vector<TaskView>& views);

// The tasks that --retry names, without those that are not in the file any more. UserError.
std::vector<std::size_t> tasks_of_retry(const Campaign& campaign,
                                        const std::vector<std::string>& names);
// Lets failed tasks continue, and sets the results of others, and of edited ones, aside with all
// that follows from them, so that they are done again. UserError if one of them runs.
void retry_tasks(const Campaign& campaign, const std::vector<std::string>& names,
                 const std::vector<TaskView>& views);

}  // namespace kintsugi
