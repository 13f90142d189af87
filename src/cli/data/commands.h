#pragma once

namespace CLI {
class App;
}

namespace kintsugi {

// The subcommands of `kintsugi data`, one function each.
void add_data_encode(CLI::App& data);
void add_data_decode(CLI::App& data);
void add_data_train_tokenizer(CLI::App& data);
void add_data_tokenize(CLI::App& data);
void add_data_prepare_chat(CLI::App& data);
void add_data_inspect(CLI::App& data);
void add_data_merge(CLI::App& data);
void add_data_verify(CLI::App& data);
void add_data_where(CLI::App& data);

}  // namespace kintsugi
