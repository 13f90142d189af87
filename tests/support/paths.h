#pragma once

#include <string>

namespace kintsugi {

// Functions, so that one file alone is compiled anew when the tree or the build lies elsewhere.
std::string source_directory();     // the project
std::string test_data_directory();  // tests/data
std::string kintsugi_binary();

}  // namespace kintsugi
