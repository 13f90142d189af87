#pragma once

namespace CLI {
class App;
}

namespace kintsugi {

// Runs the command and returns the exit code: 0 success (also for a run that a signal stopped and
// that saved), 1 failure, 2 the user's mistake.
int run_command_line(int argc, char** argv);

// Each adds one subcommand with its options, help and callback. A callback throws UserError (exit
// code 2) or Failure (1).
void add_model_command(CLI::App& app);
void add_train_command(CLI::App& app);
void add_ctl_command(CLI::App& app);
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
void add_campaign_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_accept_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_watch_command(CLI::App& app);
void add_dashboard_command(CLI::App& app);
void add_energy_command(CLI::App& app);
void add_completion_command(CLI::App& app);  // after the others, which it describes

// The subcommands of `kintsugi data`, `eval`, `model` and `plan`.
void add_data_encode(CLI::App& data);
void add_data_decode(CLI::App& data);
void add_data_train_tokenizer(CLI::App& data);
void add_data_train_language_id(CLI::App& data);
void add_data_language_id(CLI::App& data);
void add_data_card(CLI::App& data);
void add_data_curate(CLI::App& data);
void add_data_tokenize(CLI::App& data);
void add_data_prepare_chat(CLI::App& data);
void add_data_inspect(CLI::App& data);
void add_data_merge(CLI::App& data);
void add_data_verify(CLI::App& data);
void add_data_where(CLI::App& data);
void add_data_dedup(CLI::App& data);
void add_data_explore(CLI::App& data);
void add_eval_bleu(CLI::App& eval);
void add_eval_chrf(CLI::App& eval);
void add_eval_aggregate(CLI::App& eval);
void add_eval_translate(CLI::App& eval);
void add_model_merge(CLI::App& model);
void add_model_merge_adapter(CLI::App& model);
void add_model_convert(CLI::App& model);
void add_model_upcycle(CLI::App& model);
void add_model_import(CLI::App& model);
void add_model_diff(CLI::App& model);
void add_model_inspect(CLI::App& model);
void add_plan_schedule(CLI::App& plan);
void add_plan_calculate(CLI::App& plan);
void add_plan_tune(CLI::App& plan);
void add_plan_machines(CLI::App& plan);

}  // namespace kintsugi
