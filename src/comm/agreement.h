#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace kintsugi {

// What must be the same on all ranks, each under a name: "optimizer.lr", "0.001".
using Facts = std::vector<std::pair<std::string, std::string>>;

// Every rank of the group calls it with its own facts. If not all have the same, every rank throws
// the same SharedUserError, which names ranks and facts that differ from the most. One all-reduce
// of two numbers where all agree; otherwise texts of a few ranks, whatever the size of the group.
void check_agreement(Communicator& group, const Facts& mine);

}  // namespace kintsugi
