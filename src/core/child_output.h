#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kintsugi {

// A program that answers and ends, such as squeue.
struct ChildOutput {
  bool found = false;      // the program is on PATH
  bool timed_out = false;  // and was killed
  int code = -1;           // its exit code; 128 + signal if one killed it
  std::string out = {}, error = {};
};

struct ChildOptions {
  double timeout_s = 60;
  std::vector<std::string> without = {};  // beginnings of names of environment variables: removed
  std::vector<std::string> with = {};     // "NAME=value": added
  std::string input = {};                 // its standard input
};
// Runs a program of PATH. When the time is over, it and the processes that it started in its group
// are killed. Keeps at most 16 MiB of each output.
ChildOutput run_captured(const std::vector<std::string>& command, const ChildOptions& options);
// Runs a program of PATH with empty standard input, without the environment variables whose names
// start with one of `without`. Waits at most `timeout_s`; keeps at most 16 MiB of each output.
ChildOutput run_captured(const std::vector<std::string>& command, double timeout_s,
                         const std::vector<std::string>& without = {});

// This program, to start it again; also if another file replaced it meanwhile. UserError if there
// is none there.
std::filesystem::path own_program();
std::filesystem::path program_behind(const std::filesystem::path& link);  // /proc/self/exe

}  // namespace kintsugi
