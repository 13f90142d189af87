#pragma once

namespace CLI {
class App;
}

namespace kintsugi {

// The subcommands of `kintsugi plan`, one function each.
void add_plan_schedule(CLI::App& plan);
void add_plan_calculate(CLI::App& plan);
void add_plan_evaluate(CLI::App& plan);
void add_plan_tune(CLI::App& plan);
void add_plan_machines(CLI::App& plan);

}  // namespace kintsugi
