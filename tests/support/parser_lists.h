#pragma once

// Common declarations of data_parsers.cpp, config_parsers.cpp, eval_parsers.cpp and
// run_parsers.cpp.
#include <string>
#include <vector>

#include "support/file_parsers.h"
#include "support/paths.h"

namespace kintsugi {

// file_parsers() returns all of them.
std::vector<FileParser> data_parsers();    // tensors, tokenizers, prompts, token stores, text
std::vector<FileParser> config_parsers();  // configurations, checkpoints, plans
std::vector<FileParser> eval_parsers();    // results, tasks, translations
std::vector<FileParser> run_parsers();     // run directories

FileParser::Files files_in(const std::filesystem::path& directory);

}  // namespace kintsugi
