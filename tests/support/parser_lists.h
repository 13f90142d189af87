#pragma once

// What the lists of parsers share.
#include <string>
#include <vector>

#include "support/file_parsers.h"

namespace kintsugi {

// file_parsers() is the two together.
std::vector<FileParser> data_parsers();    // tensors, tokenizers, token stores, text
std::vector<FileParser> config_parsers();  // configurations, checkpoints, plans

std::string content_of(const std::filesystem::path& path);
FileParser::Files files_in(const std::filesystem::path& directory);

}  // namespace kintsugi
