#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "report/dashboard/dashboard_service.h"
#include "report/runs/run_view.h"

namespace kintsugi {

// Writes server-sent events to one client until it leaves or the server ends. What it keeps does
// not grow with the length of a run, and an event is written before the next one is made.
class DashboardService::LiveEvents {
 public:
  LiveEvents(DashboardService& service, std::vector<std::string> ids, std::function<bool()> gone);
  void run(const HttpReply::Write& write);

 private:
  struct Followed {
    std::filesystem::path directory;
    StepSeries series;
    LogTail log;
    double sent_step = -1;  // the last one
    std::int64_t rewinds = 0;
  };

  bool send_runs(const HttpReply::Write& write);
  bool begin(const std::string& id, const HttpReply::Write& write);  // follows a run from now on
  bool send_news_of(const std::string& id, const HttpReply::Write& write);
  bool send_last_log_lines(const std::string& id, Followed& run, const HttpReply::Write& write);
  bool send_points(const std::string& id, Followed& run, const HttpReply::Write& write);
  bool wait() const;  // false: the stream ends

  DashboardService& service_;
  std::vector<std::string> ids_;
  std::function<bool()> gone_;
  std::map<std::string, RunSummary> sent_;
  std::map<std::string, Followed> followed_;
};

}  // namespace kintsugi
