#include "cli/plan/simulator.h"

#include <sstream>
#include <vector>

#include "core/child_output.h"
#include "core/error.h"

namespace kintsugi {
namespace {

constexpr const char* kProgram = "kintsugi-simulate";
constexpr double kTimeout = 3600;

}  // namespace

std::string find_simulator(const std::filesystem::path& program) {
  if (const std::string beside = program.parent_path() / kProgram; std::filesystem::exists(beside))
    return beside;
  if (run_captured({kProgram, "--help"}, 60).found) return kProgram;
  user_error(
      "--simulate needs the program {}, which is neither beside {} nor on PATH: it is built where "
      "SimGrid is installed (Debian: libsimgrid-dev)",
      kProgram, program.string());
}

std::string simulate_step(const std::string& simulator, const std::string& step,
                          const std::string& network, bool as_json) {
  std::vector<std::string> command = {simulator, "/dev/stdin", "--network", network};
  if (as_json) command.emplace_back("--json");
  const ChildOutput child = run_captured(command, {.timeout_s = kTimeout, .input = step});
  if (child.timed_out) failure("{} took longer than an hour", kProgram);
  if (child.code == 0) return child.out;
  std::string said;
  std::istringstream errors(child.error);
  std::getline(errors, said);
  if (child.code == exit_code::kMistake) user_error("{} refused the step: {}", kProgram, said);
  failure("{} ended with code {}: {}", kProgram, child.code, said);
}

}  // namespace kintsugi
