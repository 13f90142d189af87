#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
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

// Where an mpirun of Open MPI 4 keeps its session. It removes the folder when no other mpirun has a
// session there, and one that starts at that moment fails: each that runs beside others is given
// one of its own, below that of this process. Whoever starts it removes it.
inline constexpr const char* kMpiSessionVariable = "OMPI_MCA_orte_tmpdir_base";
std::filesystem::path mpi_session_folder(const std::string& name);

// Bash scripts that run side by side, each in a process group of its own, so that Ctrl-C reaches
// them only by the signals of this process, which all of them are sent.
class Scripts {
 public:
  Scripts();
  ~Scripts();  // leaves those that still run
  Scripts(const Scripts&) = delete;
  Scripts& operator=(const Scripts&) = delete;

  pid_t start(const std::filesystem::path& script, const Variables& variables = {});
  struct Ended {
    pid_t process = 0;
    int code = 0;  // 128 + signal if one killed it
  };
  std::optional<Ended> poll();  // waits a little while none has ended

 private:
  struct Blocked;
  std::unique_ptr<Blocked> signals_;  // while some run
  std::vector<pid_t> running_;
};
int run_script(const std::filesystem::path& script);  // only one; returns its exit code

}  // namespace kintsugi
