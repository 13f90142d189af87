#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace kintsugi {

// Runs a command as the leader of a new session, so that it and all its descendants (a launcher,
// ranks in their own process groups) can be found and ended together.

// Starts the command with empty standard input and both outputs written to `log`, or to those of
// this process if it is empty. `variables` are added to the environment. The program is looked up
// in PATH. Throws Failure if it cannot be started.
using Variables = std::vector<std::pair<std::string, std::string>>;
pid_t start_session(const std::vector<std::string>& command, const std::filesystem::path& log,
                    const Variables& variables = {});

bool session_is_over(pid_t leader);        // whether the leader has ended; does not wait
bool session_has_processes(pid_t leader);  // of any session, also one that another process started
void kill_session(pid_t leader);           // the same: SIGKILL to all its processes

// Sends SIGTERM to the leader's process group, so that a launcher ends its ranks.
void ask_session_to_end(pid_t leader);

// Ends a session: sends SIGTERM unless `asked` (launchers abort hard on a second signal), waits a
// few seconds and kills the rest. Returns the leader's wait status.
int end_session(pid_t leader, bool asked = false);

// Runs a bash script in a process group of its own, so that Ctrl-C reaches it only by the signals
// of this process, which it is sent. Returns its exit code; 128 + signal if one killed it.
int run_script(const std::filesystem::path& script);

}  // namespace kintsugi
