#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace kintsugi {

// Named values that must be the same on all ranks: {"optimizer.lr", "0.001"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

// All ranks of the group call it with their own facts. If the facts differ, all ranks throw the
// same SharedUserError, which names the ranks and facts that differ from the majority. Costs one
// all-reduce of two numbers if all agree; otherwise the texts of a few ranks are broadcast.
void check_agreement(Communicator& group, const Facts& local);

}  // namespace kintsugi
