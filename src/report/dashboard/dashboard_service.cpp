#include "report/dashboard/dashboard_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/json_members.h"
#include "core/log.h"
#include "http/http_handler.h"
#include "report/page/page.h"
#include "report/prometheus.h"
#include "report/runs/run_view.h"
#include "report/runs/series_view.h"

namespace kintsugi {
namespace {

using DashboardJson = nlohmann::ordered_json;

// Bounds of one reply.
constexpr std::size_t kMostSeriesKeys = 64, kMostSeriesPoints = 60'000;
constexpr std::size_t kFewestPoints = 50, kMostPoints = 4000;
constexpr std::size_t kMostCompared = 16, kMostFollowed = 32;
// Of live events.
constexpr auto kAliveInterval = std::chrono::seconds(15);
constexpr std::uint64_t kFollowedTail = 64 << 10;  // bytes of metrics.jsonl
constexpr std::size_t kFirstRows = 10, kMostNewRows = 500;

HttpAccess dashboard_access(const std::string& token) {
  return {.routes = {{"GET", "/", true},  // it has no secrets
                     {"GET", "/api/runs"},
                     {"GET", "/api/run"},
                     {"GET", "/api/series"},
                     {"GET", "/api/compare"},
                     {"GET", "/api/profile"},
                     {"GET", "/api/events"},
                     {"GET", "/metrics"}},
          .key = token,
          .key_in_query = true,
          .wrong_key = HttpError(401, "invalid_token",
                                 "a valid token is required: open the address with ?token=TOKEN, "
                                 "or send the header Authorization: Bearer TOKEN")};
}

HttpReply json_text_reply(std::string text) {
  return {.body = std::move(text), .headers = {{"Cache-Control", "no-store"}}};
}

std::string required(const HttpRequest& request, const char* name) {
  const auto value = request.parameter(name);
  if (!value || value->empty()) bad_field(name, "is required");
  return *value;
}

double number_parameter(const HttpRequest& request, const char* name, double otherwise) {
  const auto text = request.parameter(name);
  if (!text || text->empty()) return otherwise;
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || !std::isfinite(value))
    bad_field(name, fmt::format("'{}' is not a number", printable(*text)));
  return value;
}

std::vector<std::string> key_list(const std::string& text) {
  std::vector<std::string> keys;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    if (end > at) keys.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (keys.size() > kMostSeriesKeys)
    bad_field("keys",
              fmt::format("{} keys are too many, {} at most", keys.size(), kMostSeriesKeys));
  return keys;
}

}  // namespace

// Writes server-sent events to one client until it leaves or the server ends. What it keeps does
// not grow with the length of a run, and an event is written before the next one is made.
class DashboardService::LiveEvents {
 public:
  LiveEvents(DashboardService& service, std::vector<std::string> ids, std::function<bool()> gone)
      : service_(service), ids_(std::move(ids)), gone_(std::move(gone)) {}

  void run(const HttpReply::Write& write) {
    write_ = &write;
    // A browser waits this long before it connects again.
    if (!write("retry: 2000\n\n")) return;
    auto alive = Clock::now();
    do {
      if (!send_runs()) return;
      for (const std::string& id : ids_)
        if (!send_news_of(id)) return;
      if (Clock::now() - alive >= kAliveInterval) {
        if (!write(": alive\n\n")) return;
        alive = Clock::now();
      }
    } while (wait());
  }

 private:
  struct Followed {
    std::filesystem::path directory;
    StepSeries series;
    LogTail log;
    double sent_step = -1;  // the last one
    std::int64_t rewinds = 0;
  };

  // The functions that send return false if the stream has ended.
  bool send(const char* name, const std::string& data) const {
    return (*write_)(fmt::format("event: {}\ndata: {}\n\n", name, data));
  }

  bool wait() const {
    const auto interval = std::chrono::duration<double>(service_.options_.interval_s);
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(interval);
    for (;;) {
      if (service_.aborting() || service_.draining() || gone_()) return false;
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) return true;
      std::this_thread::sleep_for(std::min<Clock::duration>(left, std::chrono::milliseconds(100)));
    }
  }

  bool send_runs() {
    const bool first = sent_.empty();
    std::map<std::string, RunSummary> now;
    DashboardJson changed = DashboardJson::array(), removed = changed;
    for (RunSummary& summary : service_.summaries()) {
      const auto before = sent_.find(summary.id);
      if (before == sent_.end() || before->second != summary) changed.push_back(to_json(summary));
      now.emplace(summary.id, std::move(summary));
    }
    for (const auto& [id, summary] : sent_)
      if (!now.contains(id)) removed.push_back(id);
    sent_ = std::move(now);
    if (!first && changed.empty() && removed.empty()) return true;
    return send("runs", compact_json({{"runs", changed}, {"removed", removed}}));
  }

  // Follows a run from now on. Rows and lines that the client may have missed between its first
  // request and now are sent again.
  bool begin(const std::string& id) {
    const auto directory = service_.directory_of(id);
    if (!directory) return true;
    Followed run{*directory, StepSeries::of_tail(*directory / "metrics.jsonl", kFollowedTail),
                 read_log_tail(*directory)};
    run.series.update();
    run.rewinds = run.series.rewinds();
    if (run.series.rows() > kFirstRows)
      run.sent_step = run.series.step(run.series.rows() - kFirstRows - 1);
    Followed& followed = followed_.emplace(id, std::move(run)).first->second;
    if (!send_points(id, followed)) return false;
    const std::vector<std::string> lines = std::exchange(followed.log.lines, {});
    return lines.empty() ||
           send("log", compact_json({{"id", id}, {"lines", lines}, {"replace", true}}));
  }

  bool send_news_of(const std::string& id) {
    if (!sent_.contains(id)) {
      followed_.erase(id);
      return true;
    }
    const auto found = followed_.find(id);
    if (found == followed_.end()) return begin(id);
    Followed& run = found->second;
    const StepSeries::Change change = run.series.update();
    if (change == StepSeries::Change::Replaced || run.series.rewinds() != run.rewinds) {
      run.rewinds = run.series.rewinds();
      run.sent_step = run.series.rows() > 0 ? run.series.step(run.series.rows() - 1) : -1;
      if (!send("reload", compact_json({{"id", id}}))) return false;
    } else if (change == StepSeries::Change::Grown && !send_points(id, run)) {
      return false;
    }
    const std::vector<std::string> lines = read_new_log_lines(run.directory, run.log);
    return lines.empty() || send("log", compact_json({{"id", id}, {"lines", lines}}));
  }

  bool send_points(const std::string& id, Followed& run) const {
    const std::size_t first = run.series.first_row_after(run.sent_step);
    if (first == run.series.rows()) return true;
    run.sent_step = run.series.step(run.series.rows() - 1);
    return send("points", new_rows_json(run.series, id, first, kMostNewRows));
  }

  DashboardService& service_;
  std::vector<std::string> ids_;
  std::function<bool()> gone_;
  const HttpReply::Write* write_ = nullptr;  // while it runs
  std::map<std::string, RunSummary> sent_;
  std::map<std::string, Followed> followed_;
};

DashboardService::DashboardService(DashboardOptions options)
    : HttpHandler(dashboard_access(options.token)),
      options_(std::move(options)),
      index_(options_.folders),
      cache_(options_.series_bytes) {
  refresh();
}

std::size_t DashboardService::run_count() const {
  const std::lock_guard lock(mutex_);
  return index_.runs().size();
}

std::vector<SkippedFile> DashboardService::skipped() const {
  const std::lock_guard lock(mutex_);
  return index_.skipped();
}

HttpReply DashboardService::handle(const HttpRequest& request, std::function<bool()> gone) {
  return reply_to(request, [&] { return route(request, std::move(gone)); });
}

HttpReply DashboardService::route(const HttpRequest& request, std::function<bool()> gone) {
  const std::string& path = request.path;
  if (path == "/") return page_reply(page_html());
  if (path == "/api/runs") return runs();
  if (path == "/api/run") return run(request);
  if (path == "/api/series") return series(request);
  if (path == "/api/compare") return compare(request);
  if (path == "/api/profile") return profile(request);
  if (path == "/api/events") return events(request, std::move(gone));
  return metrics();
}

void DashboardService::refresh() {
  const std::lock_guard lock(mutex_);
  // Several clients share one look.
  const auto interval = std::chrono::duration<double>(options_.interval_s / 2);
  if (looked_ != Clock::time_point{} && Clock::now() - looked_ < interval) return;
  index_.refresh();
  looked_ = Clock::now();
}

std::vector<RunSummary> DashboardService::summaries() {
  refresh();
  const std::lock_guard lock(mutex_);
  std::vector<RunSummary> list;
  for (const auto& [id, run] : index_.runs()) list.push_back(run.summary());
  return list;
}

SummaryReader DashboardService::find(const std::string& id) {
  refresh();
  const std::lock_guard lock(mutex_);
  const SummaryReader* found = index_.find(id);
  if (found == nullptr)
    throw HttpError(404, "unknown_run", fmt::format("there is no run {}", printable(id)));
  return *found;
}

std::optional<std::filesystem::path> DashboardService::directory_of(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const SummaryReader* found = index_.find(id);
  if (found == nullptr) return {};
  return found->directory();
}

HttpReply DashboardService::runs() {
  refresh();
  const std::lock_guard lock(mutex_);
  return json_text_reply(compact_json(runs_json(index_)));
}

HttpReply DashboardService::run(const HttpRequest& request) {
  return json_text_reply(compact_json(run_json(find(required(request, "id")), cache_)));
}

HttpReply DashboardService::series(const HttpRequest& request) {
  const SummaryReader of = find(required(request, "id"));
  const std::vector<std::string> keys = key_list(required(request, "keys"));
  const auto axis = parse_series_axis(request.parameter("axis").value_or("step"));
  if (!axis) bad_field("axis", "is step, tokens or hours");
  SeriesQuery range{.axis = *axis};
  range.from = number_parameter(request, "from", range.from);
  range.to = number_parameter(request, "to", range.to);
  const double points = number_parameter(request, "points", 1500);
  range.max_points = static_cast<std::size_t>(
      std::clamp(points, static_cast<double>(kFewestPoints), static_cast<double>(kMostPoints)));
  range.max_points = std::max(
      kFewestPoints,
      std::min(range.max_points, kMostSeriesPoints / std::max<std::size_t>(1, keys.size())));
  std::string text;
  cache_.with(of.directory(), [&](const StepSeries& all) { text = series_json(all, keys, range); });
  return json_text_reply(std::move(text));
}

HttpReply DashboardService::compare(const HttpRequest& request) {
  const std::vector<std::string> ids = request.parameters("id");
  if (ids.empty() || ids.size() > kMostCompared)
    bad_field("id", fmt::format("give 1 to {} runs", kMostCompared));
  std::vector<SummaryReader> runs;
  for (const std::string& id : ids) runs.push_back(find(id));
  std::vector<const SummaryReader*> compared;
  for (const SummaryReader& one : runs) compared.push_back(&one);
  return json_text_reply(compact_json(compare_json(compared)));
}

HttpReply DashboardService::profile(const HttpRequest& request) {
  const SummaryReader of = find(required(request, "id"));
  const std::string name = required(request, "name");
  const std::vector<std::string> names = profile_names(of.directory());
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw HttpError(404, "unknown_profile", fmt::format("there is no profile {}", printable(name)));
  if (!options_.profile_json)
    throw HttpError(501, "not_available", "this server does not show profiles");
  return json_text_reply(profile_text(of.directory() / "profiles" / name));
}

std::string DashboardService::profile_text(const std::filesystem::path& file) {
  const std::lock_guard lock(profile_mutex_);
  const std::optional<FileStamp> stamp = stamp_of(file);  // before it is read: it may change
  if (!stamp || profile_.file != file || profile_.stamp != stamp) {
    profile_ = {};
    profile_ = {.file = file, .stamp = stamp, .text = options_.profile_json(file)};
  }
  return profile_.text;
}

HttpReply DashboardService::events(const HttpRequest& request, std::function<bool()> gone) {
  std::vector<std::string> ids = request.parameters("id");
  if (ids.size() > kMostFollowed)
    bad_field("id",
              fmt::format("{} runs are too many to follow, {} at most", ids.size(), kMostFollowed));
  if (draining()) throw HttpError(503, "shutting_down", "the server is shutting down");
  const auto live = std::make_shared<LiveEvents>(*this, std::move(ids), std::move(gone));
  return {.content_type = "text/event-stream",
          .headers = {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}},
          .stream = [live](const HttpReply::Write& write) { live->run(write); }};
}

HttpReply DashboardService::metrics() {
  std::vector<std::filesystem::path> files;
  std::map<std::string, double> states;
  refresh();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, run] : index_.runs()) {
      files.push_back(run.directory() / "metrics.prom");
      ++states[run.summary().state];
    }
  }
  return {.body = merged_prometheus(files, states),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace kintsugi
