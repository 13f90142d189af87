#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/log.h"
#include "core/units.h"
#include "launch/doctor/doctor.h"
#include "launch/slurm.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostNodes = 40;
constexpr std::size_t kMostFindings = 40;

// The lowest values of a node's ranks; 0: not measured.
struct NodeRow {
  std::string name;
  std::vector<int> ranks;
  double flops_per_s = 0, inside = 0, between = 0, write = 0;
  bool suspect = false;  // named in a warning or an error
};

void lower(double& lowest, double value) {
  if (value > 0 && (lowest == 0 || value < lowest)) lowest = value;
}

std::set<std::string> suspects(const Diagnosis& diagnosis) {
  std::set<std::string> names;
  for (const Finding& finding : diagnosis.findings)
    if (finding.severity != Severity::Note)
      names.insert(finding.nodes.begin(), finding.nodes.end());
  return names;
}

std::vector<NodeRow> rows_of(const Diagnosis& diagnosis) {
  const NodeGroups groups(nodes_of(diagnosis.ranks));
  const std::set<std::string> named = suspects(diagnosis);
  std::vector<NodeRow> rows;
  for (std::size_t node = 0; node < groups.names.size(); ++node)
    rows.push_back({.name = groups.names[node],
                    .ranks = groups.ranks[node],
                    .suspect = named.contains(groups.names[node])});
  for (const RankFacts& rank : diagnosis.ranks) {
    NodeRow& row = rows[static_cast<std::size_t>(groups.node[static_cast<std::size_t>(rank.rank)])];
    lower(row.flops_per_s, rank.device.flops_per_s);
    lower(row.write, rank.directory.write_bytes_per_s);
    for (const PairRate& pair : rank.pairs)
      for (const int member : {pair.first, pair.second}) {
        const int number = groups.node[static_cast<std::size_t>(member)];
        NodeRow& other = rows[static_cast<std::size_t>(number)];
        lower(pair.between_nodes ? other.between : other.inside, pair.bytes_per_s);
      }
  }
  return rows;
}

std::string cell(double value, double unit) {
  return value > 0 ? fmt::format("{:.3g}", value / unit) : "-";
}

std::string table_of(const Diagnosis& diagnosis) {
  const std::vector<NodeRow> rows = rows_of(diagnosis);
  const bool all = rows.size() <= kMostNodes;
  std::size_t width = 8, hidden = 0, shown = 0;
  for (const NodeRow& row : rows) width = std::max(width, row.name.size() + 2);
  std::string text = fmt::format("{:<{}}{:<12}{:>16}{:>14}{:>15}{:>12}\n", "node", width, "ranks",
                                 "matmul FLOP/s", "inside GB/s", "between GB/s", "write MB/s");
  for (const NodeRow& row : rows) {
    if (!all && (!row.suspect || shown == kMostNodes)) {
      ++hidden;
      continue;
    }
    ++shown;
    text +=
        fmt::format("{:<{}}{:<12}{:>16}{:>14}{:>15}{:>12}{}\n", printable(row.name), width,
                    number_list(row.ranks), row.flops_per_s > 0 ? format_si(row.flops_per_s) : "-",
                    cell(row.inside, 1e9), cell(row.between, 1e9), cell(row.write, 1e6),
                    row.suspect ? "  !" : "");
  }
  if (hidden > 0) text += fmt::format("{} more nodes\n", hidden);
  return text;
}

std::string times_of(const Diagnosis& diagnosis, double budget_s) {
  std::string text;
  double all = 0;
  for (const auto& [check, seconds] : diagnosis.seconds)
    if (check == "all")
      all = seconds;
    else
      text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", check, seconds);
  return fmt::format("took {:.2f} s of {:.3g} s: {}\n", all, budget_s, text);
}

std::string verdict_of(const Diagnosis& diagnosis) {
  const std::size_t errors = diagnosis.count(Severity::Error),
                    warnings = diagnosis.count(Severity::Warning);
  if (errors + warnings == 0) return "doctor: OK\n";
  std::string text = "doctor: ";
  if (errors > 0)
    text += format_number(static_cast<std::int64_t>(errors), "error") + (warnings > 0 ? ", " : "");
  if (warnings > 0) text += format_number(static_cast<std::int64_t>(warnings), "warning");
  const std::vector<std::string> nodes = diagnosis.bad_nodes();
  if (!nodes.empty()) text += "; exclude " + host_list(nodes);
  return text + "\n";
}

}  // namespace

std::string report_text(const Diagnosis& diagnosis, const DoctorOptions& options) {
  if (diagnosis.ranks.empty()) return "";
  const NodeGroups groups(nodes_of(diagnosis.ranks));
  std::string text = fmt::format(
      "{} on {}; {}, {}\n",
      format_number(static_cast<std::int64_t>(diagnosis.ranks.size()), "rank"),
      format_number(static_cast<std::int64_t>(groups.names.size()), "node"),
      printable(diagnosis.ranks.front().device.name), to_string(options.device.precision));
  text += table_of(diagnosis);
  std::size_t shown = 0;
  for (const Finding& finding : diagnosis.findings) {
    if (++shown > kMostFindings) continue;
    text += fmt::format("{}: {}: {}\n", to_string(finding.severity), finding.check,
                        printable(finding.text));
  }
  if (shown > kMostFindings) text += fmt::format("and {} more\n", shown - kMostFindings);
  return text + times_of(diagnosis, options.budget_s) + verdict_of(diagnosis);
}

std::string report_json(const Diagnosis& diagnosis) {
  nlohmann::json ranks = nlohmann::json::array(), findings = nlohmann::json::array(),
                 seconds = nlohmann::json::object();
  for (const RankFacts& rank : diagnosis.ranks)
    ranks.push_back(nlohmann::json::parse(to_json_text(rank)));
  for (const Finding& finding : diagnosis.findings)
    findings.push_back({{"severity", to_string(finding.severity)},
                        {"check", finding.check},
                        {"text", printable(finding.text)},
                        {"nodes", finding.nodes},
                        {"ranks", finding.ranks},
                        {"mistake", finding.mistake}});
  for (const auto& [check, time] : diagnosis.seconds) seconds[check] = time;
  return nlohmann::json{{"ranks", ranks},
                        {"findings", findings},
                        {"seconds", seconds},
                        {"exclude", diagnosis.bad_nodes()}}
             .dump(1) +
         "\n";
}

}  // namespace kintsugi
