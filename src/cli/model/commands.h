#pragma once

namespace CLI {
class App;
}

namespace kintsugi {

// The subcommands of `kintsugi model`, one function each.
void add_model_merge(CLI::App& model);
void add_model_merge_adapter(CLI::App& model);
void add_model_convert(CLI::App& model);
void add_model_diff(CLI::App& model);
void add_model_inspect(CLI::App& model);

}  // namespace kintsugi
