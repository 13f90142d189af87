#pragma once

#include "comm/communicator.h"

namespace kintsugi {

// Compares every collective, dtype and many sizes in one group with closed forms. Throws Failure if
// a value is wrong. All ranks of the group must call it. Used for every implementation of World.
void check_collectives(Communicator& group);

}  // namespace kintsugi
