#pragma once

#include <optional>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "serve/step_layout.h"

namespace kintsugi {

// How rank 0 of a tensor group tells the others what to compute next. The group's tensors are in
// the memory of the backend. All ranks call these in the same order.

void send_step(Backend& backend, Communicator& group, const std::vector<StepSequence>& sequences);
void send_end(Backend& backend, Communicator& group);
// Waits for the next step; none after send_end().
std::optional<std::vector<StepSequence>> receive_step(Backend& backend, Communicator& group);

// The largest of the ranks' values.
std::int32_t largest_of(Backend& backend, Communicator& group, std::int32_t value);

}  // namespace kintsugi
