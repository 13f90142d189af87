#pragma once

#include <sys/types.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace kintsugi {

// For programs that disturb runs from outside.

inline double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <class Condition>
bool wait_until(const Condition& condition, double patience_s) {
  for (const double end = unix_time() + patience_s; unix_time() < end;
       std::this_thread::sleep_for(std::chrono::milliseconds(20)))
    if (condition()) return true;
  return false;
}

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // unlike an iterator, no exception: the process of a file in /proc may end
  return text.str();
}

inline int run_shell(const std::string& command) {
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

inline std::vector<nlohmann::json> lines_of(const std::filesystem::path& path) {
  std::istringstream lines(content(path));
  std::vector<nlohmann::json> found;
  for (std::string line; std::getline(lines, line);)
    if (auto json = nlohmann::json::parse(line, nullptr, false); json.is_object())
      found.push_back(std::move(json));
  return found;
}

struct Process {
  pid_t id = 0;
  std::string command;      // words separated by NUL
  std::string environment;  // the same
  std::string variable(const std::string& name) const {
    const std::string key = '\0' + name + "=";
    const std::string text = '\0' + environment;
    const std::size_t begin = text.find(key);
    if (begin == std::string::npos) return {};
    return text.substr(begin + key.size(), text.find('\0', begin + 1) - begin - key.size());
  }
};

// Processes of kintsugi whose command has these words one after the other.
inline std::vector<Process> processes_with(const std::vector<std::string>& words) {
  std::string pattern;
  for (const std::string& word : words) pattern += '\0' + word;
  pattern += '\0';
  std::vector<Process> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    Process process{std::atoi(name.c_str()), content(entry.path() / "cmdline"), {}};
    if (process.command.find(pattern) == std::string::npos) continue;
    // Only the program itself, not a launcher that has the words in its command.
    const std::string program = process.command.substr(0, process.command.find('\0'));
    if (std::filesystem::path(program).filename() != "kintsugi") continue;
    process.environment = content(entry.path() / "environ");
    found.push_back(std::move(process));
  }
  return found;
}

}  // namespace kintsugi
