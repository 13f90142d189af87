#include "report/prometheus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include "core/log.h"
#include "report/runs/run_file.h"

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

constexpr std::size_t kMostFile = 256 << 10, kMostText = 64 << 20;  // bytes
constexpr const char* kOwnMetric = "kintsugi_dashboard_runs";

std::string take_name(std::string_view& text) {
  const auto belongs = [](char c, bool first) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
  };
  std::size_t length = 0;
  while (length < text.size() && belongs(text[length], length == 0)) ++length;
  const std::string name(text.substr(0, length));
  text.remove_prefix(length);
  return name;
}

bool take_text(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

// A label's value and the quote behind it.
std::optional<std::string> take_label_value(std::string_view& text) {
  std::string value;
  for (; !text.empty() && text.front() != '"'; text.remove_prefix(1)) {
    if (text.front() != '\\') {
      value += text.front();
      continue;
    }
    text.remove_prefix(1);
    if (text.empty()) return {};
    value += text.front() == 'n' ? '\n' : text.front();
  }
  if (!take_text(text, "\"")) return {};
  return value;
}

// Of {name="value",…}, or nothing at all.
std::optional<std::map<std::string, std::string>> take_labels(std::string_view& text) {
  std::map<std::string, std::string> labels;
  if (!take_text(text, "{")) return labels;
  do {
    const std::string name = take_name(text);
    if (name.empty() || !take_text(text, "=\"")) return {};
    auto value = take_label_value(text);
    if (!value) return {};
    labels[name] = std::move(*value);
  } while (take_text(text, ","));
  if (!take_text(text, "}")) return {};
  return labels;
}

std::optional<double> parse_value(const std::string& text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "+Inf" || text == "-Inf") return text[0] == '+' ? kInfinity : -kInfinity;
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != text.npos) return {};
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return *end == '\0' ? std::optional(value) : std::nullopt;
}

// The Prometheus text files of several runs as one. Takes what a run writes (report/prometheus.h):
// gauges and counters with HELP and TYPE. Other lines and repeated series are left out, because one
// of them would spoil the whole scrape.
class PrometheusMerge {
 public:
  void add(std::string_view text) {
    Family* family = nullptr;  // of the samples that follow
    std::string helped, help;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (take_text(line, "# HELP ")) {
        helped = take_name(line);
        help = take_text(line, " ") ? line : "";
        family = nullptr;
        continue;
      }
      if (take_text(line, "# TYPE ")) {
        const std::string name = take_name(line);
        const bool fits = name == helped && !help.empty() && name != kOwnMetric &&
                          line == (name.ends_with("_total") ? " counter" : " gauge");
        family = fits ? &families_.try_emplace(name, Family{{name, help}}).first->second : nullptr;
        continue;
      }
      if (family == nullptr || take_name(line) != family->metric.name) continue;
      auto labels = take_labels(line);
      if (!labels || !take_text(line, " ")) continue;
      const auto value = parse_value(std::string(line));
      if (value && family->seen.insert(*labels).second)
        family->metric.samples.push_back({std::move(*labels), *value});
    }
  }

  std::string text() const {
    std::vector<PrometheusMetric> metrics;
    for (const auto& [name, family] : families_) metrics.push_back(family.metric);
    return prometheus_text(metrics);
  }

 private:
  struct Family {
    PrometheusMetric metric;
    std::set<std::map<std::string, std::string>> seen = {};  // labels
  };
  std::map<std::string, Family> families_;
};

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

std::string merged_prometheus(const std::vector<std::filesystem::path>& files,
                              const std::map<std::string, double>& runs_by_state) {
  PrometheusMerge merge;
  std::size_t bytes = 0;
  for (const std::filesystem::path& file : files) {
    const FileText text = read_run_file(file, kMostFile);
    if ((bytes += text.text.size()) > kMostText) break;
    merge.add(text.text);
  }
  PrometheusMetric runs{kOwnMetric, "Runs below the folders, by state."};
  for (const auto& [state, count] : runs_by_state)
    runs.samples.push_back({{{"state", state}}, count});
  return merge.text() + prometheus_text({runs});
}

}  // namespace kintsugi
