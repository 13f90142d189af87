#pragma once

// Common declarations of *_parsers.cpp.
#include <string>
#include <vector>

#include "support/file_parsers.h"
#include "support/paths.h"

namespace kintsugi {

// file_parsers() returns all of them.
std::vector<FileParser> data_parsers();      // tensors, tokenizers, prompts, token stores, text
std::vector<FileParser> config_parsers();    // configurations, checkpoints, plans
std::vector<FileParser> eval_parsers();      // results, tasks, translations
std::vector<FileParser> document_parsers();  // run directories, for reports
std::vector<FileParser> run_parsers();       // run directories, for the dashboard

FileParser::Files files_in(const std::filesystem::path& directory);

}  // namespace kintsugi
