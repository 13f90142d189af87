#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "report/prometheus.h"

namespace kintsugi {

// The Prometheus text files of several runs as one. Takes what a run writes (report/prometheus.h):
// gauges and counters with HELP and TYPE. Other lines and repeated series are left out, because one
// of them would spoil the whole scrape.
class PrometheusMerge {
 public:
  void add(std::string_view text);
  std::string text() const;

 private:
  struct Family {
    PrometheusMetric metric;
    std::set<std::map<std::string, std::string>> seen = {};  // labels
  };
  std::map<std::string, Family> families_;
};

// The files of all runs, and kintsugi_dashboard_runs with the number of runs in each state.
std::string merged_prometheus(const std::vector<std::filesystem::path>& files,
                              const std::map<std::string, double>& runs_by_state);

}  // namespace kintsugi
