#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace kintsugi {

// A command as the leader of a session of its own, so that it and all that it starts (a launcher,
// ranks in process groups of their own) can be found and ended together.

// Nothing on standard input; output and errors go to `log`. Failure where it cannot be started.
pid_t start_session(const std::vector<std::string>& command, const std::filesystem::path& log);

bool session_is_over(pid_t leader);  // the leader has ended; does not wait

// SIGTERM to the leader's process group, for a launcher to end its ranks.
void ask_session_to_end(pid_t leader);

// Asks where it still runs and was not asked yet (launchers take a second time for impatience),
// waits a few seconds and kills what is left. The leader's wait status.
int end_session(pid_t leader, bool asked = false);

}  // namespace kintsugi
