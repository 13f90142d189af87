#pragma once

namespace kintsugi {

// Runs the command and returns the exit code: 0 success (also for a run that a signal stopped and
// that saved), 1 failure, 2 the user's mistake.
int run_command_line(int argc, char** argv);

}  // namespace kintsugi
