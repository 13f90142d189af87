#include "comm/nccl/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace kintsugi::nccl {

void set_defaults() {
  // Connect when a communicator is created. Otherwise the first call connects and blocks the host
  // until all other ranks have made it.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

std::string variables() {
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (std::string_view(*variable).starts_with("NCCL_")) found.emplace_back(*variable);
  std::sort(found.begin(), found.end());
  std::string text;
  for (const std::string& variable : found) text += (text.empty() ? "" : " ") + variable;
  return text;
}

std::optional<std::string> network_of(const std::string& log) {
  constexpr std::string_view kWords = "Using network ";
  const std::size_t at = log.rfind(kWords);
  if (at == std::string::npos) return {};
  const std::size_t begin = at + kWords.size();
  return log.substr(begin, log.find('\n', begin) - begin);
}

NetworkLog::NetworkLog(bool enabled) {
  if (!enabled || std::getenv("NCCL_DEBUG") != nullptr) return;
  path_ = std::filesystem::temp_directory_path() / fmt::format("kintsugi-nccl-{}.log", getpid());
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT", 0);
  setenv("NCCL_DEBUG_FILE", path_.c_str(), 1);
}

NetworkLog::~NetworkLog() {
  if (path_.empty()) return;
  std::error_code error;
  std::filesystem::remove(path_, error);  // NCCL keeps writing to the removed file
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) unsetenv(name);
}

std::optional<std::string> NetworkLog::network() const {
  if (path_.empty()) return {};
  std::ifstream file(path_);
  return network_of(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace kintsugi::nccl
