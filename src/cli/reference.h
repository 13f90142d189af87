#pragma once

#include <string>

namespace CLI {
class App;
}

namespace kintsugi {

// The man page and the shell completions, made from the descriptions that --help prints.
std::string man_page(const CLI::App& app);
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);

}  // namespace kintsugi
