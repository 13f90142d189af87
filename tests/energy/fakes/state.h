#pragma once

#include <dlfcn.h>

#include <fstream>
#include <map>
#include <string>

namespace {

// The state of a fake library: words in the file "state" beside it, as "name value" lines. Tests
// change it while the library is loaded, and read what the library wrote to it.
std::string state_file() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&state_file), &info);
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/')) + "/state";
}

std::map<std::string, std::string> read_state() {
  std::map<std::string, std::string> state;
  std::ifstream file(state_file());
  std::string name, value;
  while (file >> name >> value) state[name] = value;
  return state;
}

std::string state_of(const std::string& name, const std::string& otherwise) {
  const auto state = read_state();
  const auto at = state.find(name);
  return at == state.end() ? otherwise : at->second;
}
double number_of(const std::string& name, double otherwise) {
  const std::string text = state_of(name, "");
  return text.empty() ? otherwise : std::stod(text);
}
void set_state(const std::string& name, const std::string& value) {
  auto state = read_state();
  state[name] = value;
  std::ofstream file(state_file());
  for (const auto& [key, word] : state) file << key << ' ' << word << '\n';
}

}  // namespace
