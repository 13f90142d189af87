#include "serve/http/metrics.h"

#include <algorithm>

namespace kintsugi {
namespace {

PrometheusHistogram seconds(std::vector<double> bounds) {
  const std::size_t counts = bounds.size() + 1;
  return {.bounds = std::move(bounds), .counts = std::vector<std::uint64_t>(counts)};
}

void add_value(PrometheusHistogram& histogram, double value) {
  const auto bound = std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), value);
  ++histogram.counts[static_cast<std::size_t>(bound - histogram.bounds.begin())];
  histogram.sum += value;
}

}  // namespace

ServerMetrics::ServerMetrics()
    : durations_(seconds({0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300})),
      first_token_(seconds({0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30})),
      per_token_(seconds({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1})) {}

void ServerMetrics::add_request(const std::string& route, int status, double duration_s) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
  add_value(durations_, duration_s);
}

void ServerMetrics::add_first_token(double duration_s) {
  const std::lock_guard lock(mutex_);
  add_value(first_token_, duration_s);
}

void ServerMetrics::add_token_time(double duration_s) {
  const std::lock_guard lock(mutex_);
  add_value(per_token_, duration_s);
}

std::string ServerMetrics::text(const InferenceCounters& engine, const Gauges& gauges) const {
  std::vector<PrometheusMetric> metrics;
  const auto add = [&](const char* name, const char* help, std::int64_t value) {
    metrics.push_back({name, help, {{{}, static_cast<double>(value)}}, {}});
  };
  {
    const std::lock_guard lock(mutex_);
    PrometheusMetric requests{"kintsugi_requests_total", "HTTP requests", {}, {}};
    for (const auto& [key, count] : requests_)
      requests.samples.push_back(
          {{{"route", key.first}, {"code", std::to_string(key.second)}}, double(count)});
    metrics.push_back(std::move(requests));
    metrics.push_back({"kintsugi_request_seconds", "Time of HTTP requests", {}, durations_});
    metrics.push_back({"kintsugi_time_to_first_token_seconds",
                       "From the request to its first token, with the time in the queue",
                       {},
                       first_token_});
    metrics.push_back({"kintsugi_time_per_token_seconds",
                       "Mean time of a token after the first, for each text",
                       {},
                       per_token_});
  }
  add("kintsugi_connections", "Open connections", gauges.connections);
  add("kintsugi_sequences_open", "Sequences that wait or run", gauges.sequences);
  add("kintsugi_sequences_limit", "Sequences computed at the same time", gauges.max_sequences);
  add("kintsugi_sequences_waiting", "Sequences that wait for the engine", engine.waiting);
  add("kintsugi_sequences_running", "Sequences that the engine computes", engine.running);
  add("kintsugi_sequences_finished_total", "Sequences that ended by themselves", engine.finished);
  add("kintsugi_sequences_cancelled_total", "Sequences cancelled or failed", engine.cancelled);
  add("kintsugi_prompt_tokens_total", "Prompt tokens computed", engine.prompt_tokens);
  add("kintsugi_generated_tokens_total", "Tokens generated", engine.new_tokens);
  add("kintsugi_reused_tokens_total", "Prompt tokens found in the cache", engine.reused_tokens);
  add("kintsugi_preemptions_total", "Sequences set back for lack of cache", engine.preemptions);
  add("kintsugi_cache_tokens", "Size of the key-value cache", engine.cache_tokens);
  add("kintsugi_cache_tokens_in_use", "Of running sequences", engine.cache_in_use);
  add("kintsugi_engine_steps_total", "Steps of the engine", engine.steps);
  return prometheus_text(metrics);
}

}  // namespace kintsugi
