#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"

namespace kintsugi {

// What to add to this rank's clock to get that of rank 0: nothing on the same host, where they have
// one clock; elsewhere by asking rank 0 a few times, good to half the time of the quickest answer.
// Every rank calls it, with a group for host memory.
double clock_offset(Communicator& group, const std::string& host,
                    const std::function<double()>& now);

}  // namespace kintsugi
