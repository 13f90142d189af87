#include "report/prometheus.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "core/log.h"

namespace kintsugi {
namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : printable(text)) {  // the format is UTF-8
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\' || (quotes && c == '"')) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string prometheus_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string labels_text(const std::map<std::string, std::string>& labels) {
  std::string out;
  for (const auto& [name, value] : labels)
    out += fmt::format("{}{}=\"{}\"", out.empty() ? "{" : ",", name, escaped(value, true));
  return out.empty() ? out : out + "}";
}

std::string histogram_text(const std::string& name, const PrometheusHistogram& histogram) {
  std::string out;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
    total += histogram.counts[i];
    const std::string bound =
        i < histogram.bounds.size() ? prometheus_number(histogram.bounds[i]) : "+Inf";
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bound, total);
  }
  return out +
         fmt::format("{0}_sum {1}\n{0}_count {2}\n", name, prometheus_number(histogram.sum), total);
}

}  // namespace

std::string prometheus_text(const std::vector<PrometheusMetric>& metrics) {
  std::string out;
  for (const PrometheusMetric& metric : metrics) {
    if (metric.samples.empty() && !metric.histogram) continue;
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", metric.name, escaped(metric.help, false),
                       metric.histogram                  ? "histogram"
                       : metric.name.ends_with("_total") ? "counter"
                                                         : "gauge");
    if (metric.histogram) out += histogram_text(metric.name, *metric.histogram);
    for (const PrometheusSample& sample : metric.samples)
      out += fmt::format("{}{} {}\n", metric.name, labels_text(sample.labels),
                         prometheus_number(sample.value));
  }
  return out;
}

}  // namespace kintsugi
