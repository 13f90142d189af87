#pragma once

namespace CLI {
class App;
}

namespace kintsugi {

// The subcommands of `kintsugi eval`, one function each.
void add_eval_bleu(CLI::App& eval);
void add_eval_chrf(CLI::App& eval);
void add_eval_aggregate(CLI::App& eval);
void add_eval_translate(CLI::App& eval);

}  // namespace kintsugi
