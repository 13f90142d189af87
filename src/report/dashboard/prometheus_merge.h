#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// The Prometheus text files of several runs as one: HELP and TYPE once per name, lines that are not
// of the format and repeated series left out, because one such line would spoil the whole scrape.
class PrometheusMerge {
 public:
  void add(std::string_view text);
  std::string text() const;

 private:
  struct Family {
    std::string help, type;
    std::map<std::string, std::string> samples = {};  // "name{labels}" -> value
  };
  std::map<std::string, Family> families_;
};

// The files of all runs, and kintsugi_dashboard_runs with the number of runs in each state.
std::string merged_prometheus(const std::vector<std::filesystem::path>& files,
                              const std::map<std::string, double>& runs_by_state);

}  // namespace kintsugi
