#pragma once

namespace kintsugi::exit_code {

// What the exit code of the program means, for job scripts and the supervisor.
// docs/configuration.md has the table for users.
inline constexpr int kFinished = 0;
inline constexpr int kFailure = 1;     // of the machine: another attempt may succeed
inline constexpr int kMistake = 2;     // of the user: another attempt fails in the same way
inline constexpr int kDiverged = 3;    // the training itself went wrong
inline constexpr int kNoProgress = 4;  // the supervisor gave up after attempts without a new step
inline constexpr int kStopped = 75;    // on request, with a saved state; EX_TEMPFAIL of sysexits.h

}  // namespace kintsugi::exit_code
