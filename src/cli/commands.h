#pragma once

namespace CLI {
class App;
}

namespace kintsugi {

// Each adds one subcommand with its options, help and callback. A callback throws UserError (exit
// code 2) or Failure (1).
void add_model_command(CLI::App& app);
void add_train_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_serve_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_classify_command(CLI::App& app);
void add_embed_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_calibrate_command(CLI::App& app);
void add_launch_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_watch_command(CLI::App& app);
void add_dashboard_command(CLI::App& app);
void add_energy_command(CLI::App& app);
void add_completion_command(CLI::App& app);  // after the others, which it describes

}  // namespace kintsugi
