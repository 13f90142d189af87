#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/units.h"
#include "launch/doctor/judge.h"

namespace kintsugi {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kSharedMemoryPerRank = 64 * kMiB;  // what MPI and NCCL use
constexpr double kMuchSharedMemory = 1024 * kMiB;
constexpr std::int64_t kFewOpenFiles = 1024;
constexpr double kYear2025 = 1'735'689'600, kYear2100 = 4'102'444'800;

// "a, b and 3 more"
std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

void judge_space(const RankFacts& rank, const std::string& directory, double needed, double wanted,
                 Findings& findings) {
  const double free = rank.directory.free_bytes;
  if (free >= wanted) return;
  const bool full = free < needed;
  findings.push_back(
      {full ? Severity::Error : Severity::Warning, "directory",
       fmt::format("{} has {} free, {} {}: free some space, or choose another run.dir", directory,
                   format_bytes(free),
                   full ? "and the next checkpoint needs" : "and the checkpoints of this run need",
                   format_bytes(full ? needed : wanted))});
}

}  // namespace

std::string_view to_string(Severity severity) {
  return severity == Severity::Note ? "note" : severity == Severity::Warning ? "warning" : "error";
}

Findings judge_directory(const std::vector<RankFacts>& ranks, const std::string& directory,
                         double needed_bytes, double wanted_bytes) {
  Findings findings;
  std::vector<std::string> sick, blind;
  std::size_t checked = 0;
  std::string problem;
  for (const RankFacts& rank : ranks) {
    if (!rank.directory.checked) continue;
    ++checked;
    if (!rank.directory.problem.empty()) {
      sick.push_back(rank.node);
      if (problem.empty()) problem = rank.directory.problem;
    } else if (!rank.directory.sees_first && ranks.front().directory.problem.empty()) {
      blind.push_back(rank.node);
    }
  }
  if (checked == 0) return findings;
  // What all nodes find is not the fault of a node.
  if (!sick.empty())
    findings.push_back(
        {Severity::Error, "directory",
         checked == sick.size() ? problem : fmt::format("{}: {}", some(sick), problem),
         checked == sick.size() ? std::vector<std::string>{} : sick});
  if (!blind.empty()) {
    const bool none = blind.size() + 1 == checked;
    findings.push_back(
        {.severity = Severity::Error,
         .check = "directory",
         .text = fmt::format("{} does not see what rank 0 writes to {}: {}", some(blind), directory,
                             none ? "choose a directory that all nodes share"
                                  : "its file system is not mounted there"),
         .nodes = none ? std::vector<std::string>{} : blind,
         .mistake = none});
  }
  const auto first = std::find_if(ranks.begin(), ranks.end(),
                                  [](const RankFacts& rank) { return rank.directory.checked; });
  if (first->directory.problem.empty())
    judge_space(*first, directory, needed_bytes, wanted_bytes, findings);
  return findings;
}

Findings judge_hosts(const std::vector<RankFacts>& ranks, const DoctorLimits& limits) {
  Findings findings;
  const NodeGroups groups(nodes_of(ranks));
  for (std::size_t node = 0; node < groups.names.size(); ++node) {
    const std::vector<int>& members = groups.ranks[node];
    const std::string& name = groups.names[node];
    const HostFacts& host = ranks[static_cast<std::size_t>(members.front())].host;
    if (std::abs(host.clock_offset_s) > limits.clock_s)
      findings.push_back(
          {Severity::Warning, "clock",
           fmt::format(
               "the clock of {} is {:.3g} s {} that of {}: times in logs cannot be compared", name,
               std::abs(host.clock_offset_s), host.clock_offset_s > 0 ? "behind" : "ahead of",
               groups.names.front())});
    if (host.wall_clock_s != 0 && (host.wall_clock_s < kYear2025 || host.wall_clock_s > kYear2100))
      findings.push_back(
          {Severity::Warning, "clock", fmt::format("the clock of {} is wrong", name)});
    if (host.shared_memory_free >= 0 &&
        host.shared_memory_free < kSharedMemoryPerRank * static_cast<double>(members.size()))
      findings.push_back(
          {Severity::Warning, "environment",
           fmt::format("/dev/shm of {} has {} free for {} ranks; MPI and NCCL or RCCL may "
                       "fail: delete old files there",
                       name, format_bytes(host.shared_memory_free), members.size())});
    if (host.old_shared_memory > kMuchSharedMemory)
      findings.push_back(
          {Severity::Note, "environment",
           fmt::format("/dev/shm of {} has {} of your files that are older than an hour", name,
                       format_bytes(host.old_shared_memory))});
    if (host.open_files > 0 && host.open_files < kFewOpenFiles)
      findings.push_back(
          {Severity::Warning, "environment",
           fmt::format("{} allows {} open files per process: ulimit -n {} before the launch", name,
                       host.open_files, 4 * kFewOpenFiles)});
  }
  return findings;
}

Findings judge_network(const std::optional<std::string>& network, bool allow_sockets,
                       const std::string& library) {
  if (!network) return {};
  if (network->empty())
    return {{Severity::Warning, "links",
             fmt::format("the network that {} uses is not known, because NCCL_DEBUG is set: unset "
                         "it to check",
                         library)}};
  if (*network != "Socket" || allow_sockets)
    return {{Severity::Note, "links", fmt::format("{} uses the network {}", library, *network)}};
  Finding finding = {
      Severity::Error, "links",
      fmt::format("{} uses TCP between nodes: load the network plug-in of this machine "
                  "(NCCL_NET_PLUGIN, LD_LIBRARY_PATH), or set comm.allow_sockets if there is no "
                  "other network",
                  library)};
  finding.mistake = true;
  return {finding};
}

}  // namespace kintsugi
