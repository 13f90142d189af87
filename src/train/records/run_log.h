#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "comm/rank_failure.h"
#include "train/records/goodput_log.h"
#include "train/records/run_events.h"
#include "train/records/run_sinks.h"
#include "train/step_metrics.h"

namespace kintsugi {

// What a run does, or how it ended.
struct RunState {
  std::string state = "running";  // or finished, stopped, diverged, failed
  std::optional<int> exit_code = {};
  std::string reason = {};  // why it stopped or failed, in a word or two
  std::string message = {};
  // Whether all ranks know how it ended and wait for rank 0. Otherwise they must be told before
  // rank 0 waits for anything.
  bool shared = true;
  RankFailure failure = {};  // with the state diverged or failed
};
// After a failure.
RunState failed_state(const RankFailure& failure, bool shared);

// Writes metrics.jsonl (one object per line and step, complete lines only, appended to after a
// restart; `seq` counts records), status.json (replaced atomically), goodput.jsonl, and the files
// of RunSinks, RunFiles and RunEvents.
class RunLog {
 public:
  RunLog(const std::filesystem::path& directory, std::int64_t total_steps, AttemptClock clock,
         SinkOptions sinks = {}, const NotifyConfig& notify = {});

  // `saving`: a save is under way. If it has filled the disk, the line is written later: a save
  // that fails removes its files. Otherwise an error is thrown.
  void record(const StepRecord& record, bool saving = false);
  void flush();  // writes the lines that could not be written
  // At the end of a run that all ranks know of, it also waits until the event was delivered.
  void status(const RunState& state, const StepRecord& last, std::optional<double> valid_loss,
              double eta_s, const std::string& checkpoint) noexcept;
  // Writes the last status again with the state "failed"; later calls of status() write nothing.
  // Thread-safe. Returns without waiting for the delivery of the event: the caller first tells the
  // other ranks, then calls what is returned, which waits without a limit. It may be empty.
  std::function<void()> fail(const RankFailure& failure) noexcept;
  GoodputLog& goodput() { return *goodput_; }
  RunFiles& files() { return files_; }
  RunEvents& events() { return events_; }
  // The steps whose tasks an earlier process evaluated.
  const std::set<std::int64_t>& evaluated() const { return evaluated_; }

 private:
  void write_status(const std::string& text, bool last) noexcept;
  std::optional<std::int64_t> write_failure(const RankFailure& failure);

  std::mutex mutex_;    // guards status_, failed_ and status_lost_
  std::string status_;  // last status, as JSON
  bool failed_ = false, status_lost_ = false;
  std::filesystem::path directory_;
  std::int64_t total_steps_;
  std::int64_t sequence_ = 0;
  std::set<std::int64_t> evaluated_;
  RunFiles files_;
  RunEvents events_;
  std::optional<GoodputLog> goodput_;
  std::optional<RunSinks> sinks_;
  std::optional<Straggler> straggler_;  // the last one that was recorded
  std::string unwritten_;               // lines of metrics.jsonl
};

}  // namespace kintsugi
