#pragma once

#include <map>
#include <string>
#include <vector>

namespace kintsugi {

struct PrometheusSample {
  std::map<std::string, std::string> labels = {};  // values may be any text
  double value = 0;
};

// A metric whose name ends in _total is a counter, any other one a gauge.
struct PrometheusMetric {
  std::string name;
  std::string help;
  std::vector<PrometheusSample> samples = {};  // none: the metric is left out
};

// The text format, version 0.0.4, without time stamps.
std::string prometheus_text(const std::vector<PrometheusMetric>& metrics);

}  // namespace kintsugi
