#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/worlds.h"
#include "core/log.h"
#include "train/trainer.h"

namespace kintsugi {

void add_train_command(CLI::App& app) {
  struct Arguments {
    std::string config;
    std::vector<std::string> overrides;
    std::string resume = "auto";
    bool check = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model as a YAML file describes");
  command->add_option("config", arguments->config, "The run's configuration")->required();
  command
      ->add_option("--set", arguments->overrides,
                   "Override a value: --set optimizer.lr=3e-4 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--resume", arguments->resume,
                   "auto: continue the latest checkpoint in run.dir if there is one; never: refuse "
                   "a directory that "
                   "holds a run")
      ->check(CLI::IsMember({"auto", "never"}))
      ->capture_default_str();
  command->add_flag("--check", arguments->check, "Check configuration, data and memory, then stop");
  command->footer(
      "Example:\n"
      "  kintsugi train examples/demo.yaml --set 'data.train=[{path: my.txt}]' --set "
      "run.dir=runs/mine\n"
      "\n"
      "SIGTERM, SIGUSR1, SIGHUP and Ctrl-C finish the step, save a checkpoint and end with exit\n"
      "code 0; the same command then continues the run.");
  command->callback([arguments] {
    const RunConfig config = load_run_config(arguments->config, arguments->overrides);
    const std::unique_ptr<Backend> backend =
        make_backend(config.device, config.threads, config.cuda);
    Trainer trainer(*backend, config);
    if (arguments->check) {
      log_info("the configuration, the data and the memory are in order");
      return;
    }
    const RunOutcome outcome =
        trainer.run(arguments->resume == "auto" ? ResumeMode::Auto : ResumeMode::Never);
    if (outcome == RunOutcome::Finished)
      log_info("finished; the run is in {}", trainer.directory().string());
  });
}

}  // namespace kintsugi
