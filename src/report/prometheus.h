#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

struct PrometheusSample {
  std::map<std::string, std::string> labels = {};  // values may be any text
  double value = 0;
};

struct PrometheusHistogram {
  std::vector<double> bounds;         // ascending
  std::vector<std::uint64_t> counts;  // of values up to each bound and above the one before; last:
                                      // above all bounds
  double sum = 0;
};

// A metric whose name ends in _total is a counter, any other one a gauge, unless it has a
// histogram. Without samples and histogram it is left out.
struct PrometheusMetric {
  std::string name;
  std::string help;
  std::vector<PrometheusSample> samples = {};
  std::optional<PrometheusHistogram> histogram = {};
};

// The text format, version 0.0.4, without time stamps.
std::string prometheus_text(const std::vector<PrometheusMetric>& metrics);

// The files of all runs, and kintsugi_dashboard_runs with the number of runs in each state.
std::string merged_prometheus(const std::vector<std::filesystem::path>& files,
                              const std::map<std::string, double>& runs_by_state);

}  // namespace kintsugi
