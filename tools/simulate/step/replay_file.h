#pragma once

#include <string>

#include "plan/search/step_replay.h"

namespace kintsugi {

// Parses what to_json(StepReplay) writes. UserError if it is not one that can be simulated:
// everything has a limit. The keys are those of StepReplay:
// - `groups` (`size` ranks, `stride` apart), `calls` (a collective of a group: `bytes` of the full
//   tensor, `priced_s`), `pieces` and `stages`
// - pieces, and the `forward` and `backward` of a stage's chunks: lists of ["compute", seconds],
//   ["start", call, ticket], ["wait", ticket] and ["piece", number, times]
// - `gradients`, `weights` and `sums` of a stage: pairs of a call and how often it is made per step
// - `pipeline`: its actions are those of `kintsugi plan schedule --json`
// - `message_bytes`: what each rank of a stage sends; the others are the machine's, and `priced`
StepReplay parse_replay(const std::string& text, const std::string& source);

}  // namespace kintsugi
