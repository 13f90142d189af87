#pragma once

#include <string>

#include "train/engine.h"

namespace kintsugi {

// Compares the bits of the weights that several ranks hold: those of data-parallel replicas (with
// ZeRO 0 to 2 all data ranks, with ZeRO 3 the ranks with the same shard) and of parameters that
// tensor ranks hold copies of. Returns "" or which ranks and nodes differ in which parameter, the
// same text on all ranks. All ranks call it. A rank copies its stored weights to the host and
// hashes them; the ranks exchange 24 bytes each.
std::string differing_replicas(Engine& engine);

}  // namespace kintsugi
