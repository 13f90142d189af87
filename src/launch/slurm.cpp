#include "launch/slurm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "core/child_output.h"
#include "core/error.h"
#include "core/units.h"
#include "launch/job_script.h"

namespace kintsugi {
namespace {

using Words = std::vector<std::string>;

constexpr double kAnswer_s = 60;   // of squeue and others: a busy controller is slow
constexpr double kSubmit_s = 180;  // of sbatch, which runs the site's plug-ins

std::string first_line(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n\t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

std::string complaint_of(const ChildOutput& answer) {
  const std::string line = first_line(answer.error.empty() ? answer.out : answer.error);
  return line.empty() ? fmt::format("exit code {}", answer.code) : line;
}

ChildOutput ask(const Words& command, double timeout_s, const Words& without = {}) {
  ChildOutput answer = run_captured(command, timeout_s, without);
  if (!answer.found)
    user_error("{} is not installed on this machine: use --local, or --print to see the script",
               command[0]);
  if (answer.timed_out)
    failure("{} did not answer within {}: try again later", command[0], format_duration(timeout_s));
  return answer;
}

ChildOutput demand(const Words& command, double timeout_s, const Words& without = {}) {
  ChildOutput answer = ask(command, timeout_s, without);
  if (answer.code != 0) failure("{} failed: {}", command[0], complaint_of(answer));
  return answer;
}

Words fields_of(const std::string& line) {
  Words fields;
  std::istringstream text(line);
  for (std::string field; std::getline(text, field, '|');) fields.push_back(field);
  return fields;
}

std::int64_t number_in(const std::string& text, const char* command) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc() || result.ptr != end || value < 0 ||
      value > std::int64_t{1} << 40)
    failure("{} answered '{}' where a number is expected", command, first_line(text));
  return value;
}

bool is_job_id(const std::string& text) {
  return !text.empty() && text.size() < 20 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

bool no_such_job(const ChildOutput& answer) {
  return answer.error.find("Invalid job id") != std::string::npos;
}

// Jobs that have ended meanwhile need no signal.
void cancel_with(Words command, const Words& ids) {
  if (ids.empty()) return;
  command.insert(command.begin(), "scancel");
  command.insert(command.end(), ids.begin(), ids.end());
  const ChildOutput answer = ask(command, kAnswer_s);
  if (answer.code != 0 && !no_such_job(answer)) failure("scancel failed: {}", complaint_of(answer));
}

}  // namespace

bool slurm_is_here() { return run_captured({"sbatch", "--version"}, kAnswer_s).found; }

void require_slurm() { ask({"sbatch", "--version"}, kAnswer_s); }

std::optional<double> parse_slurm_time(const std::string& text) {
  if (text == "infinite" || text == "UNLIMITED" || text == "n/a") return {};
  const std::size_t dash = text.find('-');
  const double days =
      dash == std::string::npos ? 0 : static_cast<double>(number_in(text.substr(0, dash), "sinfo"));
  std::vector<double> parts;
  std::istringstream rest(dash == std::string::npos ? text : text.substr(dash + 1));
  for (std::string part; std::getline(rest, part, ':');)
    parts.push_back(static_cast<double>(number_in(part, "sinfo")));
  if (parts.empty() || parts.size() > 3) failure("sinfo answered the time '{}'", text);
  // With days: hours first. Without: minutes, minutes:seconds or hours:minutes:seconds.
  if (dash == std::string::npos && parts.size() < 3) parts.insert(parts.begin(), 0);
  parts.resize(3, 0);
  return ((days * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2];
}

std::vector<SlurmPartition> slurm_partitions() {
  const ChildOutput answer = demand({"sinfo", "--noheader", "--format=%P|%l|%D"}, kAnswer_s);
  std::vector<SlurmPartition> partitions;
  std::istringstream lines(answer.out);
  for (std::string line; std::getline(lines, line);) {
    const Words fields = fields_of(line);
    if (fields.size() != 3) continue;
    const std::int64_t nodes = number_in(fields[2], "sinfo");
    const auto known = std::find_if(partitions.begin(), partitions.end(),
                                    [&](const SlurmPartition& p) { return p.name == fields[0]; });
    if (known != partitions.end())
      known->nodes += nodes;  // sinfo groups nodes that differ
    else
      partitions.push_back({fields[0], parse_slurm_time(fields[1]), nodes});
  }
  return partitions;
}

void check_partition(const std::vector<SlurmPartition>& partitions, const std::string& partition,
                     std::int64_t nodes, double job_s) {
  // sinfo marks the default partition with *.
  const auto plain = [](const SlurmPartition& p) {
    return p.name.ends_with('*') ? p.name.substr(0, p.name.size() - 1) : p.name;
  };
  const auto found =
      std::find_if(partitions.begin(), partitions.end(), [&](const SlurmPartition& p) {
        return partition.empty() ? p.name.ends_with('*') : plain(p) == partition;
      });
  if (found == partitions.end()) {
    Words names;
    for (const SlurmPartition& p : partitions) names.push_back(plain(p));
    if (partition.empty())
      user_error("Slurm has no default partition here: give --partition, one of {}",
                 fmt::join(names, ", "));
    const std::string near = nearest_word(partition, names);
    user_error("Slurm has no partition '{}' here{}: its partitions are {}", partition,
               near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near),
               fmt::join(names, ", "));
  }
  if (nodes > found->nodes)
    user_error("{} for the job, but the partition {} has {}", format_number(nodes, "node"),
               plain(*found), found->nodes);
  if (found->limit_s && job_s > *found->limit_s)
    user_error(
        "the partition {} runs jobs for at most {}, not {}: give a shorter --time, or "
        "launch.limits in a machine file so that the run becomes a chain of jobs",
        plain(*found), slurm_time(*found->limit_s), slurm_time(job_s));
}

std::string submit_job(const std::filesystem::path& script, const Words& options) {
  Words command = {"sbatch", "--parsable"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(script.string());
  // Variables such as SBATCH_PARTITION would override the lines of the script.
  const ChildOutput answer = demand(command, kSubmit_s, {"SBATCH_"});
  const std::string line = first_line(answer.out);
  const std::string id = line.substr(0, line.find(';'));  // "17;cluster"
  if (!is_job_id(id)) failure("sbatch answered '{}' instead of a job id", line);
  return id;
}

std::vector<SlurmJobState> job_states(const Words& ids) {
  if (ids.empty()) return {};
  const ChildOutput answer =
      ask({"squeue", "--noheader", fmt::format("--jobs={}", fmt::join(ids, ",")),
           "--format=%i|%T|%R|%M|%l"},
          kAnswer_s);
  if (answer.code != 0 && no_such_job(answer)) return {};
  if (answer.code != 0) failure("squeue failed: {}", complaint_of(answer));
  std::vector<SlurmJobState> states;
  std::istringstream lines(answer.out);
  for (std::string line; std::getline(lines, line);)
    if (const Words fields = fields_of(line); fields.size() == 5)
      states.push_back({fields[0], fields[1], fields[2], fields[3], fields[4]});
  return states;
}

void stop_jobs(const Words& ids) {
  cancel_with({"--state=PENDING"}, ids);
  cancel_with({"--state=RUNNING", "--signal=USR1"}, ids);
}

void kill_jobs(const Words& ids) { cancel_with({}, ids); }

namespace {

// "nid007" is the prefix "nid" and the digits "007".
struct NumberedName {
  std::string prefix, digits;
  bool padded() const { return digits.size() > 1 && digits.front() == '0'; }
};

NumberedName parts_of(const std::string& name) {
  constexpr std::size_t kMostDigits = 15;
  std::size_t at = name.size();
  while (at > 0 && name.size() - at < kMostDigits && name[at - 1] >= '0' && name[at - 1] <= '9')
    --at;
  return {name.substr(0, at), name.substr(at)};
}

}  // namespace

std::string number_ranges(const std::set<std::int64_t>& numbers, std::size_t width) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const std::int64_t first = *at;
    std::int64_t last = first;
    for (++at; at != numbers.end() && *at == last + 1; ++at) last = *at;
    text += fmt::format("{}{:0{}}", text.empty() ? "" : ",", first, width);
    if (last > first) text += fmt::format("-{:0{}}", last, width);
  }
  return text;
}

std::string host_list(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::set<std::pair<std::string, std::size_t>> padded;  // prefix, width
  for (const std::string& name : names)
    if (const NumberedName parts = parts_of(name); parts.padded())
      padded.emplace(parts.prefix, parts.digits.size());
  // By prefix and width; width 0: without leading zeros. 100 joins 098 and 099, but not 98.
  std::map<std::pair<std::string, std::size_t>, std::set<std::int64_t>> groups;
  std::vector<std::string> words;
  for (const std::string& name : names) {
    const NumberedName parts = parts_of(name);
    if (parts.digits.empty()) {
      words.push_back(name);
      continue;
    }
    const bool wide = padded.contains({parts.prefix, parts.digits.size()});
    groups[{parts.prefix, wide ? parts.digits.size() : 0}].insert(
        std::strtoll(parts.digits.c_str(), nullptr, 10));
  }
  for (const auto& [group, numbers] : groups) {
    const std::string ranges = number_ranges(numbers, group.second);
    words.push_back(numbers.size() == 1 ? group.first + ranges
                                        : fmt::format("{}[{}]", group.first, ranges));
  }
  std::sort(words.begin(), words.end());
  return fmt::format("{}", fmt::join(words, ","));
}

}  // namespace kintsugi
