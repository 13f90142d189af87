#include "support/campaign_faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>  // small_run.h needs it
#include <signal.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "support/campaign_files.h"
#include "support/fault_tools.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "train/checkpoint/folder.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr double kQueuePatience_s = 300;  // for the queue to become empty
constexpr double kSecondsPerHour = 3600;
// Slurm and this program give times in whole seconds, and up to as many jobs as the sweep has begin
// at the same time.
constexpr double kSlurmSlack_s = 15;
constexpr int kMostCommands = 10;
constexpr int kCampaignSweep = 150, kCampaignLong = 320, kCampaignKeep = 80, kCampaignLast = 120;

void sleep_for_s(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::vector<std::string> words_from(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  char block[512];
  while (pipe != nullptr && std::fgets(block, sizeof(block), pipe) != nullptr) text += block;
  if (pipe != nullptr) ::pclose(pipe);
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string listed(int count, int first, int step, const char* format = "{}") {
  std::vector<std::string> items;
  for (int i = 0; i < count; ++i)
    items.push_back(fmt::format(fmt::runtime(format), first + i * step));
  return fmt::format("{}", fmt::join(items, ", "));
}

}  // namespace

CampaignFaults::CampaignFaults(std::uint64_t seed, SlurmCluster& cluster)
    : random_(seed), cluster_(cluster) {}

double CampaignFaults::uniform(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random_);
}

CampaignFaults::Answer CampaignFaults::campaign(const std::string& arguments) const {
  const fs::path out = here_ / "out.txt";
  const int code =
      run_shell(fmt::format("cd {} && {} campaign campaign.yaml {} </dev/null >{} 2>&1",
                            here_.string(), kintsugi_binary(), arguments, out.string()));
  return {code, content(out)};
}

std::string CampaignFaults::diagnosis() const {
  std::string text = "\n" + campaign("--status").text;
  for (const auto& entry : fs::recursive_directory_iterator(here_ / "c"))
    if (entry.path().extension() == ".out" || entry.path().filename() == "attempts.jsonl" ||
        entry.path().filename() == "output.txt")
      text += fmt::format("--- {}\n{}", entry.path().string(), content(entry.path()));
  return text;
}

void CampaignFaults::write_files(const CampaignSize& size) {
  here_ = directory_ / fmt::format("trial-{}", ++count_);
  fs::create_directory(here_);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(here_ / name) << text;
  };
  write("corpus.txt", small_corpus(400));
  std::string base = small_config("corpus.txt", "unused",
                                  "steps: 1, checkpoint_every: 20, eval_every: 0, dropout: 0.1",
                                  "device: cpu\nthreads: 1\ncomm: {deterministic: true}\n");
  base.replace(base.find("micro: 2"), 8, "micro: 6");
  write("base.yaml", base);
  // It promises far more than a core of this machine does: the budget is used up by surprise.
  std::string machine = cpu_machine(100);
  machine.replace(machine.find("memory_gb_s: 10,"), 16, "memory_gb_s: 100000, launch_us: 0.01,");
  write("cpu.yaml", machine);
  const std::string nodes = fmt::format(
      "nodes:\n"
      "  sweep: {{run: base.yaml, set: {{train.steps: {}}}, grid: {{optimizer.lr: [{}]}}}}\n"
      "  best: {{best: {{of: sweep, metric: loss}}}}\n"
      "  long: {{like: best, set: {{train.steps: {}, train.keep_every: {}}}}}\n"
      "  cool: {{like: best, from: long, at: [{}], set: {{train.steps: {}}}}}\n"
      "  chosen: {{best: {{of: cool, metric: loss}}}}\n"
      "  last: {{like: chosen, from: chosen, set: {{train.steps: {}}}, grid: {{optimizer.lr: "
      "[{}]}}}}\n"
      "  merge: {{model: \"merge {{last}} --output {{self}}/model\", launch: {{time: 1s}}}}\n",
      kCampaignSweep, listed(size.sweep, 1, 2, "{}e-3"), kCampaignLong, kCampaignKeep,
      listed(size.cool, kCampaignKeep, kCampaignKeep), kCampaignLast, kCampaignLast,
      listed(size.last, 1, 3, "{}e-4"));
  const std::string launch = "launch: {machine: cpu.yaml, time: 20min}\n";
  write("campaign.yaml", "campaign: {dir: c}\n" + launch + nodes);
  write("whole.yaml", "campaign: {dir: whole}\n" + launch + nodes);
}

std::vector<std::string> CampaignFaults::runs_of(const CampaignSize& size) const {
  std::vector<std::string> runs = {"long"};
  for (const char* node : {"sweep", "cool", "last"})
    for (const auto& entry : fs::directory_iterator(here_ / "whole" / node))
      runs.push_back(fmt::format("{}/{}", node, entry.path().filename().string()));
  if (runs.size() != static_cast<std::size_t>(size.runs()))
    failure("the campaign has {} runs instead of {}", runs.size(), size.runs());
  return runs;
}

void CampaignFaults::wait_for_queue() const {
  if (!wait_until([] { return words_from("squeue -h -o %A").empty(); }, kQueuePatience_s))
    failure("the queue is not empty after {} s: {}{}", kQueuePatience_s,
            fmt::join(words_from("squeue -h"), " "), diagnosis());
}

// ---- the budget

std::vector<CampaignFaults::Attempt> CampaignFaults::attempts(const char* name) const {
  std::vector<Attempt> found;
  for (const auto& entry : fs::recursive_directory_iterator(here_ / name))
    if (entry.path().filename() == "attempts.jsonl")
      for (const auto& line : lines_of(entry.path()))
        found.push_back({entry.path().parent_path().parent_path().string(),
                         line.at("began").get<double>(), line.at("ended").get<double>()});
  return found;
}

// Counted from the attempts of the runs, each of which uses one node of one rank.
void CampaignFaults::check_budget(const std::string& status, double limit_hours) const {
  const std::vector<Attempt> all = attempts("c");
  const auto spent_until = [&](double time_s) {
    double sum_s = 0;
    for (const Attempt& one : all)
      sum_s += std::max(0.0, std::min(one.ended_s, time_s) - one.began_s);
    return sum_s / kSecondsPerHour;
  };
  for (const Attempt& one : all)
    if (spent_until(one.began_s - kSlurmSlack_s) > limit_hours)
      failure("{} began when {:.3g} of {:.3g} GPU-hours were spent{}", one.task,
              spent_until(one.began_s), limit_hours, diagnosis());
  const double spent = spent_until(unix_time());
  if (spent < limit_hours - kSlurmSlack_s / kSecondsPerHour)
    failure("it stopped when {:.3g} of {:.3g} GPU-hours were spent{}", spent, limit_hours,
            diagnosis());
  if (status.find("the limit of ") == std::string::npos)
    failure("the status does not say that the limit stopped it: {}", status);
  const std::size_t at = status.find("\nspent ");
  const double said = at == std::string::npos ? -1 : std::stod(status.substr(at + 7));
  if (std::abs(said - spent) > 0.01 * spent)
    failure("{:.6g} GPU-hours were spent, but the status says: {}", spent, status);
}

void CampaignFaults::exhaust_budget() {
  double whole_s = 0;
  for (const Attempt& one : attempts("whole")) whole_s += one.ended_s - one.began_s;
  const std::string plan = campaign("--dry-run").text;
  const std::size_t most = plan.find("(at most ");
  if (most == std::string::npos) failure("there is no plan: {}", plan);
  const double limit_hours =  // more than what is planned with the limit of a command, 1 s
      std::stod(plan.substr(most + 9)) + (1.2 + uniform(0.1, 0.4) * whole_s) / kSecondsPerHour;
  const Answer started = campaign(fmt::format("--yes --max-gpu-hours {}", limit_hours));
  if (started.code != 0) failure("the campaign was not submitted: {}", started.text);
  wait_for_queue();
  check_budget(campaign("--status").text, limit_hours);
  const Answer again = campaign("--yes");  // the limit is remembered
  if (again.code != 2 || again.text.find("but the limit is") == std::string::npos)
    failure("beyond its limit the campaign was continued: {}", again.text);
}

// ---- the faults

std::string CampaignFaults::kill_driver() {
  const fs::path out = here_ / "driver.txt";
  const double after_s = uniform(0.1, 3);
  run_shell(
      fmt::format("cd {} && {{ {} campaign campaign.yaml --yes </dev/null >{} 2>&1 & driver=$!; "
                  "sleep {}; kill -9 $driver; wait $driver; }} 2>/dev/null",
                  here_.string(), kintsugi_binary(), out.string(), after_s));
  return fmt::format("driver killed after {:.1f} s", after_s);
}

std::string CampaignFaults::kill_job() {
  const std::vector<std::string> jobs = words_from("squeue -h -t RUNNING -o %A");
  if (jobs.empty()) return "";
  const std::string job = jobs[random_() % jobs.size()];
  run_shell(fmt::format("scancel --signal=KILL --full {} 2>/dev/null", job));
  return "job killed";
}

std::string CampaignFaults::kill_rank() {
  const std::vector<Process> ranks = processes_with({"train"});
  std::vector<pid_t> ours;
  for (const Process& process : ranks)
    if (process.command.find(here_.string()) != std::string::npos) ours.push_back(process.id);
  if (ours.empty()) return "";
  ::kill(ours[random_() % ours.size()], SIGKILL);
  return "rank killed";
}

std::string CampaignFaults::kill_node() {
  const std::vector<std::string> nodes = words_from("squeue -h -t RUNNING -o %N");
  if (nodes.empty() || !dead_nodes_.empty()) return "";
  dead_nodes_.push_back(nodes[random_() % nodes.size()]);
  cluster_.kill_node(dead_nodes_.back());
  return "node killed";
}

void CampaignFaults::revive_nodes() {
  for (const std::string& node : dead_nodes_) cluster_.revive_node(node);
  dead_nodes_.clear();
}

std::string CampaignFaults::disturb() {
  switch (random_() % 5) {
    case 0:
      return kill_driver();
    case 1:
      return kill_job();
    case 2:
      return kill_rank();
    case 3:
      return kill_node();
    default:
      return campaign("--cancel").code == 0 ? "cancelled" : "";
  }
}

// The same command, until nothing is missing.
void CampaignFaults::finish() {
  for (int i = 0; i < kMostCommands; ++i) {
    // A command of the campaign (not a run) that was killed has failed; only --retry begins it.
    const bool failed = campaign("--status").text.find("merge  failed") != std::string::npos;
    const Answer answer = campaign(failed ? "--yes --retry merge" : "--yes");
    if (answer.code != 0) failure("the campaign does not continue: {}{}", answer.text, diagnosis());
    wait_for_queue();
    if (fs::exists(here_ / "c/merge/model/config.json") &&
        campaign("--dry-run").text.find("Nothing is missing") != std::string::npos)
      return;
  }
  failure("the campaign does not end: {}", diagnosis());
}

// Every bit of the last checkpoints.
void CampaignFaults::compare(const CampaignSize& size) const {
  for (const std::string& run : runs_of(size)) {
    const auto whole = list_checkpoints(here_ / "whole" / run / "checkpoints");
    if (whole.empty()) failure("{} of the undisturbed campaign has no checkpoint", run);
    const std::string name = whole.back().model().filename().string();
    for (const std::string& file :
         {name + "/model.safetensors", "state/" + name + "/optimizer.safetensors"}) {
      const std::string expected = content(here_ / "whole" / run / "checkpoints" / file);
      if (expected.empty() || content(here_ / "c" / run / "checkpoints" / file) != expected)
        failure("{}: {} differs from that of the undisturbed campaign{}", run, file, diagnosis());
    }
  }
  if (content(here_ / "c/merge/model/model.safetensors") !=
      content(here_ / "whole/merge/model/model.safetensors"))
    failure("the merged model differs{}", diagnosis());
}

std::string CampaignFaults::trial(const CampaignSize& size) {
  write_files(size);
  if (run_shell(
          fmt::format("cd {} && {} campaign whole.yaml --local --yes --jobs 2 >whole.txt 2>&1",
                      here_.string(), kintsugi_binary())) != 0)
    failure("the undisturbed campaign failed: {}", content(here_ / "whole.txt"));
  std::vector<std::string> done;
  try {
    exhaust_budget();
    // At random moments, until it has ended.
    for (int i = 0;
         i < size.faults && (i == 0 || !fs::exists(here_ / "c/merge/model/config.json"));) {
      if (campaign("--yes --max-gpu-hours 1000").code == 2)
        failure("the campaign is refused: {}", content(here_ / "out.txt"));
      sleep_for_s(uniform(0.2, 4));
      const std::string what = disturb();
      if (what.empty()) continue;
      done.push_back(what);
      ++i;
      sleep_for_s(uniform(0, 2));
      if (what == "node killed" && random_() % 2 == 0) sleep_for_s(12);  // Slurm notices it
      revive_nodes();
    }
    finish();
    compare(size);
  } catch (...) {
    run_shell("scancel -u $(id -un) > /dev/null 2>&1");
    revive_nodes();
    throw;
  }
  std::error_code ignored;
  fs::remove_all(here_, ignored);
  return fmt::format("{}", fmt::join(done, ", "));
}

}  // namespace kintsugi
