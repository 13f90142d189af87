#pragma once

#include "comm/communicator.h"

namespace kintsugi {

// Every collective, dtype and odd size in one group against closed forms; Failure where a value is
// wrong. All ranks of the group call it. Used with every kind of world.
void check_collectives(Communicator& group);

}  // namespace kintsugi
