#pragma once

#include <filesystem>
#include <string>

namespace kintsugi {

// Functions, so that only one file is recompiled if the source or build directory changes.
std::string source_directory();     // the project
std::string test_data_directory();  // tests/data
// The program under test, which sees no GPU when a test starts it; the environment variable
// KINTSUGI_BINARY names another one, such as that of an older commit.
std::string kintsugi_binary();
// Another program of the same build, such as kintsugi_emulated; "" if it was left out.
std::string built_program(const std::string& name);
std::string fake_library(const std::string& name);          // tests/energy/fakes: "nvml"
std::string rocm_stand_in(const std::string& file);         // tests/emulator/rocm: "librccl.so.1"
std::string content_of(const std::filesystem::path& path);  // "" if there is no such file

}  // namespace kintsugi
