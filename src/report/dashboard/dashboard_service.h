#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "http/http_handler.h"
#include "report/runs/run_file.h"
#include "report/runs/run_index.h"
#include "report/runs/series_view.h"

namespace kintsugi {

struct DashboardOptions {
  std::vector<std::filesystem::path> folders;
  std::string token = {};  // empty: none is needed
  std::size_t series_bytes = SeriesCache::kMostBytes;
  // The breakdown of a profile as JSON. Empty: profiles are listed but not shown.
  std::function<std::string(const std::filesystem::path&)> profile_json = {};
  double interval_s = 1;  // between two looks at the files
};

// The dashboard: the page and what it asks for (docs/dashboard.md). Only reads. A client names runs
// by their ids in the index; no path of a client reaches the file system.
class DashboardService : public HttpHandler {
 public:
  explicit DashboardService(DashboardOptions options);  // searches the folders

  HttpReply handle(const HttpRequest& request, std::function<bool()> gone) override;

  std::size_t run_count() const;
  std::vector<SkippedFile> skipped() const;

 private:
  class LiveEvents;  // one /api/events
  using Clock = std::chrono::steady_clock;

  HttpReply route(const HttpRequest& request, std::function<bool()> gone);
  HttpReply runs();
  HttpReply run(const HttpRequest& request);
  HttpReply series(const HttpRequest& request);
  HttpReply compare(const HttpRequest& request);
  HttpReply profile(const HttpRequest& request);
  HttpReply events(const HttpRequest& request, std::function<bool()> gone);
  HttpReply metrics();
  // Looks at the files, unless that was done a moment ago.
  void refresh();
  // A copy, so that reading its files does not keep others waiting. HttpError if there is none.
  SummaryReader find(const std::string& id);
  std::optional<std::filesystem::path> directory_of(const std::string& id) const;
  std::vector<RunSummary> summaries();
  std::string profile_text(const std::filesystem::path& file);

  DashboardOptions options_;
  mutable std::mutex mutex_;  // guards index_ and looked_
  RunIndex index_;
  Clock::time_point looked_ = {};
  SeriesCache cache_;
  // The last profile. Reading one takes seconds and hundreds of megabytes: one at a time.
  struct ProfileText {
    std::filesystem::path file = {};
    std::optional<FileStamp> stamp = {};
    std::string text = {};
  };
  std::mutex profile_mutex_;  // guards profile_
  ProfileText profile_;
};

}  // namespace kintsugi
