#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"

namespace kintsugi {

// Seconds to add to this rank's clock to get that of rank 0. 0 on the same host, which has one
// clock; otherwise measured with a few messages to rank 0, accurate to half the shortest round
// trip. All ranks call it, with a group for host memory. Only ranks for which `asks` returns true
// ask for it, all of them if it is empty; it must be the same function on all ranks.
double clock_offset(Communicator& group, const std::string& host,
                    const std::function<double()>& now, const std::function<bool(int)>& asks = {});

}  // namespace kintsugi
