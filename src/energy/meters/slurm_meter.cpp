#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "core/child_output.h"
#include "core/error.h"
#include "core/units.h"
#include "energy/meters/find_meters.h"

namespace kintsugi {
namespace {

using SlurmClock = std::chrono::steady_clock;

constexpr double kSlurmTimeout_s = 5;
constexpr double kSlurmUpdate_s = 30;                       // its samples are 10 to 30 s apart
constexpr auto kBetweenQueries = std::chrono::seconds(10);  // each one asks Slurm's daemons

std::string variable_or(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

// The output of a command of Slurm, without spaces and line ends around it.
std::string ask_slurm(const std::vector<std::string>& command) {
  const ChildOutput answer = run_captured(command, kSlurmTimeout_s);
  if (!answer.found) failure("{} is not on PATH", command[0]);
  if (answer.timed_out) failure("{} gave no answer in {} s", command[0], kSlurmTimeout_s);
  const auto line = [](const std::string& text) {
    const auto first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) return std::string();
    const auto last = text.find_first_of("\r\n", first);
    const std::string whole = text.substr(first, last == std::string::npos ? last : last - first);
    return whole.substr(0, whole.find_last_not_of(" \t") + 1);
  };
  if (answer.code != 0)
    failure("{} failed with exit code {}: {}", command[0], answer.code, line(answer.error));
  return command[0] == "scontrol" ? answer.out : line(answer.out);
}

// The energy of the step so far; empty before Slurm's first sample.
std::optional<double> consumed_energy_j(const std::string& step) {
  const std::string text =
      ask_slurm({"sstat", "-j", step, "--noheader", "--parsable2", "--format=ConsumedEnergyRaw"});
  if (text.empty()) return std::nullopt;
  try {
    const double joules = parse_real(text);
    // Plug-ins that subtract without a check report about 2^64.
    if (joules >= 0 && joules < 1e15) return joules;
  } catch (const UserError&) {
  }
  failure("sstat reports an energy of '{}' J for step {}", text, step);
}

// "none" if Slurm counts no energy, otherwise the plug-in; empty: unknown.
std::string energy_plugin() {
  const std::string settings = ask_slurm({"scontrol", "show", "config"});
  const auto at = settings.find("AcctGatherEnergyType");
  if (at == std::string::npos) return "";
  const std::string line = settings.substr(at, settings.find('\n', at) - at);
  const auto value = line.find_first_not_of(" \t", line.find('=') + 1);
  if (value == std::string::npos || line.find("(null)") != std::string::npos) return "none";
  const auto slash = line.rfind('/');
  return line.substr(slash == std::string::npos ? value : slash + 1);
}

class SlurmMeter : public Meter {
 public:
  SlurmMeter(const std::string& step, const std::string& plugin, std::optional<double> joules)
      : Meter({.source = "slurm",
               .scope = "node",
               .level = EnergyLevel::Node,
               .detail = fmt::format("sstat, step {}, plug-in {}; the whole node, with other jobs "
                                     "on it",
                                     step, plugin),
               .update_s = kSlurmUpdate_s}),
        step_(step),
        asked_(SlurmClock::now()),
        last_{.joules = joules.value_or(0), .scan = 0} {}

  MeterReading read() override {
    if (const auto now = SlurmClock::now(); now - asked_ >= kBetweenQueries) {
      asked_ = now;  // also after a failure: a slow Slurm is not asked more often
      const std::optional<double> joules = consumed_energy_j(step_);
      if (joules && joules != last_.joules) last_ = {.joules = joules, .scan = *last_.scan + 1};
    }
    return last_;
  }

 private:
  std::string step_;
  SlurmClock::time_point asked_;
  MeterReading last_;
};

// The meter, or Failure with the reason why there is none.
std::unique_ptr<Meter> slurm_meter() {
  const std::string job = variable_or("SLURM_JOB_ID", ""), id = variable_or("SLURM_STEP_ID", "");
  if (job.empty()) failure("not in a job of Slurm");
  if (id.empty()) failure("not in a step of job {}: start the program with srun", job);
  const std::string nodes =
      variable_or("SLURM_STEP_NUM_NODES", variable_or("SLURM_NNODES", "an unknown number of"));
  // sstat adds up all nodes of the step: a meter on each node would count them several times.
  if (nodes != "1") failure("the step has {} nodes, and sstat reports only their sum", nodes);
  const std::string plugin = energy_plugin();
  if (plugin == "none") failure("AcctGatherEnergyType is none: Slurm counts no energy here");
  const std::string step = job + "." + id;
  const std::optional<double> joules = consumed_energy_j(step);
  if (plugin.empty() && joules.value_or(0) <= 0)
    failure("sstat reports no energy of step {}", step);
  return std::make_unique<SlurmMeter>(step, plugin, joules);
}

}  // namespace

void add_slurm(const MeterSearch& search, FoundMeters& found) {
  try {
    if (search.root != "/") failure("no command is run for a recorded tree");
    found.meters.push_back(slurm_meter());
  } catch (const Failure& error) {
    found.missing.push_back({"slurm", error.what()});
  }
}

}  // namespace kintsugi
