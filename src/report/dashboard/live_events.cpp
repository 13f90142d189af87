#include "report/dashboard/live_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "report/runs/json_members.h"
#include "report/runs/series_json.h"

namespace kintsugi {
namespace {

constexpr auto kAliveInterval = std::chrono::seconds(15);
constexpr std::uint64_t kFollowedTail = 64 << 10;  // bytes of metrics.jsonl
constexpr std::size_t kFirstRows = 10, kMostNewRows = 500;

std::string event_of(const char* name, const std::string& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, data);
}

}  // namespace

DashboardService::LiveEvents::LiveEvents(DashboardService& service, std::vector<std::string> ids,
                                         std::function<bool()> gone)
    : service_(service), ids_(std::move(ids)), gone_(std::move(gone)) {}

void DashboardService::LiveEvents::run(const HttpReply::Write& write) {
  // A browser waits this long before it connects again.
  if (!write("retry: 2000\n\n")) return;
  auto alive = Clock::now();
  do {
    if (!send_runs(write)) return;
    for (const std::string& id : ids_)
      if (!send_news_of(id, write)) return;
    if (Clock::now() - alive >= kAliveInterval) {
      if (!write(": alive\n\n")) return;
      alive = Clock::now();
    }
  } while (wait());
}

bool DashboardService::LiveEvents::wait() const {
  const auto interval = std::chrono::duration<double>(service_.options_.interval_s);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(interval);
  for (;;) {
    if (service_.aborting() || service_.draining() || gone_()) return false;
    const auto left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) return true;
    std::this_thread::sleep_for(std::min<Clock::duration>(left, std::chrono::milliseconds(100)));
  }
}

bool DashboardService::LiveEvents::send_runs(const HttpReply::Write& write) {
  const bool first = sent_.empty();
  std::map<std::string, RunSummary> now;
  nlohmann::ordered_json changed = nlohmann::ordered_json::array(), removed = changed;
  for (RunSummary& summary : service_.summaries()) {
    const auto before = sent_.find(summary.id);
    if (before == sent_.end() || before->second != summary) changed.push_back(to_json(summary));
    now.emplace(summary.id, std::move(summary));
  }
  for (const auto& [id, summary] : sent_)
    if (!now.contains(id)) removed.push_back(id);
  sent_ = std::move(now);
  if (!first && changed.empty() && removed.empty()) return true;
  return write(event_of("runs", compact_json({{"runs", changed}, {"removed", removed}})));
}

// Rows and lines that the client may have missed between its first request and now are sent again.
bool DashboardService::LiveEvents::begin(const std::string& id, const HttpReply::Write& write) {
  const auto directory = service_.directory_of(id);
  if (!directory) return true;
  Followed run{*directory, StepSeries::of_tail(*directory / "metrics.jsonl", kFollowedTail),
               read_log_tail(*directory)};
  run.series.update();
  run.rewinds = run.series.rewinds();
  if (run.series.rows() > kFirstRows)
    run.sent_step = run.series.step(run.series.rows() - kFirstRows - 1);
  Followed& followed = followed_.emplace(id, std::move(run)).first->second;
  return send_points(id, followed, write) && send_last_log_lines(id, followed, write);
}

bool DashboardService::LiveEvents::send_last_log_lines(const std::string& id, Followed& run,
                                                       const HttpReply::Write& write) {
  const std::vector<std::string> lines = std::exchange(run.log.lines, {});
  if (lines.empty()) return true;
  return write(event_of("log", compact_json({{"id", id}, {"lines", lines}, {"replace", true}})));
}

bool DashboardService::LiveEvents::send_news_of(const std::string& id,
                                                const HttpReply::Write& write) {
  if (!sent_.contains(id)) {
    followed_.erase(id);
    return true;
  }
  const auto found = followed_.find(id);
  if (found == followed_.end()) return begin(id, write);
  Followed& run = found->second;
  const StepSeries::Change change = run.series.update();
  if (change == StepSeries::Change::Replaced || run.series.rewinds() != run.rewinds) {
    run.rewinds = run.series.rewinds();
    run.sent_step = run.series.rows() > 0 ? run.series.step(run.series.rows() - 1) : -1;
    if (!write(event_of("reload", compact_json({{"id", id}})))) return false;
  } else if (change == StepSeries::Change::Grown && !send_points(id, run, write)) {
    return false;
  }
  const std::vector<std::string> lines = read_new_log_lines(run.directory, run.log);
  return lines.empty() || write(event_of("log", compact_json({{"id", id}, {"lines", lines}})));
}

bool DashboardService::LiveEvents::send_points(const std::string& id, Followed& run,
                                               const HttpReply::Write& write) {
  const std::size_t first = run.series.first_row_after(run.sent_step);
  if (first == run.series.rows()) return true;
  run.sent_step = run.series.step(run.series.rows() - 1);
  return write(event_of("points", new_rows_json(run.series, id, first, kMostNewRows)));
}

}  // namespace kintsugi
