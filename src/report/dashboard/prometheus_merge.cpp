#include "report/dashboard/prometheus_merge.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>

#include "report/runs/run_file.h"

namespace kintsugi {
namespace {

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

}  // namespace

void PrometheusMerge::add(std::string_view text) {
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

std::string PrometheusMerge::text() const {
  std::vector<PrometheusMetric> metrics;
  for (const auto& [name, family] : families_) metrics.push_back(family.metric);
  return prometheus_text(metrics);
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
