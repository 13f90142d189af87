// kintsugi-simulate: a step that kintsugi plan priced, simulated with SimGrid.
#include <fmt/format.h>

#include <string>

#include "cli/options.h"
#include "cli/process.h"
#include "core/error.h"
#include "core/file.h"
#include "simulate/report.h"
#include "simulate/step/replay_file.h"

namespace kintsugi {
namespace {

struct Options {
  std::string step = {};
  std::string network = "fat-tree";
  bool as_json = false;
};

void simulate_file(const Options& options) {
  const NetworkKind kind = parse_network_kind(options.network);
  const StepReplay replay = parse_replay(read_text_file(options.step), options.step);
  const SimulatedStep step = simulate(replay, kind);
  fmt::print("{}", options.as_json ? step_json(replay, step, kind) : step_text(replay, step));
}

int run(int argc, char** argv) {
  CLI::App app("Simulate the messages of a training step with SimGrid", "kintsugi-simulate");
  Options o;
  const AddOption add(app);
  add("step", o.step, "The file that kintsugi plan --replay wrote", kRequired);
  add("--network", o.network, "fat-tree (the default) or dragonfly");
  add("--json", o.as_json, "Print JSON");
  app.footer("Example:\n  kintsugi-simulate step.json --network dragonfly");
  try {
    app.parse(argc, argv);
    simulate_file(o);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "error: {}\n", explain(error, app));
    return exit_code::kMistake;
  } catch (const std::exception& error) {
    return report(error);
  }
  return exit_code::kFinished;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  kintsugi::prepare_process();
  return kintsugi::finish_process(kintsugi::run(argc, argv));
}
