#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "report/goodput.h"

namespace kintsugi {

// The clock of an attempt, in seconds since 1970. Setting the system's clock does not change it.
struct AttemptClock {
  double launched_s = 0;
  std::function<double()> now_s;
};

// Writes RUN_DIR/goodput.jsonl: at the start and the end of an attempt, and once a minute. Only
// rank 0 has one. Thread-safe. A failed write is a warning: it must not end the run.
class GoodputLog {
 public:
  // `last_records`: of metrics.jsonl, of the attempt before.
  GoodputLog(const std::filesystem::path& run_dir, AttemptClock clock,
             const std::vector<std::string>& last_records);

  // Where training begins: finished steps, their tokens, and on what it runs.
  struct Beginning {
    std::int64_t step = 0, tokens = 0, nodes = 1;
    ByLevel<LevelMeter> meters = {};
  };
  void start(const Beginning& beginning);  // training begins now
  struct Step {
    std::int64_t step = 0, tokens = 0;  // as in Beginning
    double seconds = 0;
    double exposed_s = 0;  // part of the seconds in which the step waited for communication
  };
  void note_step(const Step& step);
  void note_stage_end();
  void note_energy(const EnergyTotals& since_launch);  // before note_step()
  void note_save(double seconds);                      // the steps waited for it
  void note_saved(double seconds);                     // from its begin until it was published
  void note_validation(double seconds);
  // The run goes back to `step`, without a restart.
  void rewind(std::int64_t step);
  void end(const std::string& state, const std::string& reason, std::optional<int> exit_code);

  std::optional<double> last_save_s();  // how long the steps waited for the last save
  // For status.json: "attempt", "goodput" and "energy_j".
  void add_to(nlohmann::ordered_json& status);
  Goodput ledger();  // of all attempts, up to now

 private:
  void write(GoodputEvent event);
  GoodputEvent now(GoodputEvent::Kind kind) const;
  Goodput up_to_now() const;

  std::mutex mutex_;  // guards everything below
  std::filesystem::path file_;
  AttemptClock clock_;
  GoodputEvent first_;    // the record of start()
  GoodputEvent current_;  // steps and seconds since start()
  Goodput ledger_;        // of all attempts up to the last record
  double next_record_s_ = 0;
  std::optional<double> last_save_s_;
  bool started_ = false, ended_ = false, lost_ = false;
};

// How long the last save of the run in this directory took, if it has recorded one.
std::optional<double> last_save_time(const std::filesystem::path& run_dir);

// The submission of the job that `kintsugi launch` describes in RUN_DIR/launch/job.json, if any.
std::optional<double> submission_time(const std::filesystem::path& run_dir);

}  // namespace kintsugi
