#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "report/prometheus.h"
#include "serve/inference_engine.h"

namespace kintsugi {

// Counts what the server does, for /metrics. Thread-safe.
class ServerMetrics {
 public:
  ServerMetrics();

  void add_request(const std::string& route, int status, double duration_s);
  void add_first_token(double duration_s);
  void add_token_time(double duration_s);  // the mean of a text, after its first token

  struct Gauges {
    std::int64_t sequences = 0, connections = 0, max_sequences = 0;
  };
  std::string text(const InferenceCounters& engine, const Gauges& gauges) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> requests_;  // by route and status
  PrometheusHistogram durations_, first_token_, per_token_;
};

}  // namespace kintsugi
