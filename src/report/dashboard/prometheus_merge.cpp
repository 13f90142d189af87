#include "report/dashboard/prometheus_merge.h"

#include <cstdlib>

#include "core/log.h"
#include "report/prometheus.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostFile = 256 << 10, kMostText = 64 << 20;  // bytes

constexpr const char* kOwnMetric = "kintsugi_dashboard_runs";

bool is_name_character(char c, bool first) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' ||
         (!first && c >= '0' && c <= '9');
}

std::size_t name_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && is_name_character(text[length], length == 0)) ++length;
  return length;
}

// The length of {name="value",…}; 0: there is none, npos: it is damaged.
std::size_t labels_length(std::string_view text) {
  if (!text.starts_with('{')) return 0;
  std::size_t at = 1;
  while (at < text.size() && text[at] != '}') {
    const std::size_t name = name_length(text.substr(at));
    at += name;
    if (name == 0 || text.substr(at, 2) != "=\"") return text.npos;
    for (at += 2; at < text.size() && text[at] != '"'; ++at)
      if (text[at] == '\\') ++at;
    ++at;
    if (at < text.size() && text[at] == ',') ++at;
  }
  return at < text.size() ? at + 1 : text.npos;
}

bool is_prometheus_value(const std::string& text) {
  if (text == "NaN" || text == "+Inf" || text == "-Inf") return true;
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  const bool starts_well = !text.empty() && text.find_first_not_of("0123456789+-.eE") == text.npos;
  return starts_well && *end == '\0';
}

// "name rest" of "# HELP name rest"; empty name: it is another line.
std::pair<std::string, std::string> comment_of(std::string_view line, std::string_view kind) {
  if (!line.starts_with(kind)) return {};
  line.remove_prefix(kind.size());
  const std::size_t length = name_length(line);
  if (length == 0 || length >= line.size() || line[length] != ' ') return {};
  return {std::string(line.substr(0, length)), std::string(line.substr(length + 1))};
}

}  // namespace

void PrometheusMerge::add(std::string_view text) {
  std::string family;  // of the samples that follow
  std::map<std::string, std::string> helps;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (auto [name, help] = comment_of(line, "# HELP "); !name.empty()) helps[name] = help;
    if (auto [name, type] = comment_of(line, "# TYPE "); !name.empty()) {
      const bool known = (type == "gauge" || type == "counter") && name != kOwnMetric;
      const auto found = families_.try_emplace(name, Family{helps[name], type}).first;
      family = known && found->second.type == type ? name : "";
    }
    const std::size_t name = name_length(line);
    if (family.empty() || line.substr(0, name) != family) continue;
    const std::size_t labels = labels_length(line.substr(name));
    if (labels == line.npos || line.substr(name + labels, 1) != " ") continue;
    const std::string value(line.substr(name + labels + 1));
    if (is_prometheus_value(value) && printable(line) == line)
      families_[family].samples.try_emplace(std::string(line.substr(0, name + labels)), value);
  }
}

std::string PrometheusMerge::text() const {
  std::string text;
  for (const auto& [name, family] : families_) {
    if (family.samples.empty()) continue;
    if (!family.help.empty()) text += "# HELP " + name + " " + printable(family.help) + "\n";
    text += "# TYPE " + name + " " + family.type + "\n";
    for (const auto& [series, value] : family.samples) text += series + " " + value + "\n";
  }
  return text;
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
