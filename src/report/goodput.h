#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "energy/energy_report.h"
#include "energy/energy_totals.h"

namespace kintsugi {

// A record of RUN_DIR/goodput.jsonl. An attempt is one launch of the program. Times are in seconds
// since 1970.
struct GoodputEvent {
  enum class Kind : std::uint8_t {
    Start,     // an attempt, or its next stage, is about to train
    Progress,  // now and then, and before a rewind
    End,       // the attempt is over; missing if it was killed
  };
  Kind kind = Kind::Progress;
  double time_s = 0;
  std::int64_t step = 0;    // finished steps
  std::int64_t tokens = 0;  // of these steps

  // Start only.
  double launched_s = 0;
  std::int64_t nodes = 1;
  std::optional<double> submitted_s = {};  // when the job entered the queue
  // What else is known of the attempt before: its last sign of life and its last step.
  std::optional<double> alive_s = {};
  std::optional<std::int64_t> reached = {};
  std::optional<std::int64_t> reached_tokens = {};  // at `reached`
  std::optional<double> unrecorded_steps_s = {};    // in steps from its last event to `reached`
  std::optional<ByLevel<LevelAmount>> spent = {};   // its energy until then
  ByLevel<LevelMeter> meters = {};

  // Progress and End: time since Start in steps, in saves and in validations.
  double steps_s = 0, checkpoint_s = 0, validation_s = 0;
  double exposed_s = 0;               // part of steps_s in which rank 0 waited for communication
  std::optional<double> save_s = {};  // from the begin of the last save until it was published

  EnergyTotals energy = {};  // of all nodes since the launch

  // End only; as in status.json.
  std::string state = {}, reason = {};
  std::optional<int> exit_code = {};
  bool operator==(const GoodputEvent&) const = default;
};

// What is known of an attempt from its metrics.jsonl: the last records, and when the file was last
// written. Sets the fields of a Start about the attempt before. `last`: the last event of the
// ledger. If the records do not go back to it, the steps before them took as long on average.
GoodputEvent signs_of(const std::filesystem::path& metrics,
                      const std::vector<std::string>& last_records, const GoodputEvent& last);
// The energy in a record of metrics.jsonl, only of metered levels.
void add_since_launch(nlohmann::ordered_json& record, const ByLevel<LevelAmount>& energy);

std::string to_json_line(const GoodputEvent& event);  // without a line end
// Nothing if the line is not such a record: a damaged ledger must not prevent a run or a report.
std::optional<GoodputEvent> parse_goodput_line(std::string_view line);
std::vector<GoodputEvent> read_goodput(const std::filesystem::path& file);  // empty: no such file

// What the time of a run, or its energy at one level, was used for: in seconds or joules.
struct GoodputAmounts {
  double productive = 0;  // steps done for the first time
  double recomputed = 0;  // steps that an earlier attempt had done, or that a rewind discarded
  double checkpoint = 0;  // the steps waited for a save
  double validation = 0;
  double startup = 0;  // from the launch to the first step
  double waiting = 0;  // in the queue
  double down = 0;     // between two attempts, not in the queue
  double other = 0;    // within an attempt: records, reloads
  double exposed = 0;  // part of `productive` in which steps waited for communication

  double total() const;
  double fraction() const;  // productive / total; 0 without any time
  GoodputAmounts& operator+=(const GoodputAmounts& other);
};
// Their names in status.json and reports, in this order.
struct GoodputCategory {
  const char* name;
  double GoodputAmounts::*amount;
};
const std::vector<GoodputCategory>& goodput_categories();

struct Attempt {
  std::int64_t nodes = 1;
  double launched_s = 0, last_s = 0;           // last: its end, or its last known sign of life
  std::int64_t first_step = 0, last_step = 0;  // finished steps at its start and at its end
  std::string state = "running";               // "lost": it was killed or its node died
  std::string reason = {};
  std::optional<int> exit_code = {};
  GoodputAmounts seconds = {};          // with waiting and down before it
  ByLevel<GoodputAmounts> joules = {};  // of all nodes
  ByLevel<double> covered_s = {};       // metered time, in node-seconds
  ByLevel<LevelMeter> meters = {};
};

// Charges every second and every joule of a run's life to one category. A function of the events,
// in their order. The total is the time from the first launch (or its submission) to the last
// event. If a clock was set back between two attempts, the time between them counts as 0.
class Goodput {
 public:
  void add(const GoodputEvent& event);
  void add(const std::vector<GoodputEvent>& events);
  // What is known of an attempt that has not ended, since its last event: the fields of a Start
  // about the attempt before.
  void add_later_signs(const GoodputEvent& next);
  void mark_lost();  // the last attempt, if it has not ended: it does not run any more

  const std::vector<Attempt>& attempts() const { return attempts_; }
  GoodputAmounts seconds() const;
  GoodputAmounts joules(EnergyLevel level) const;
  std::int64_t furthest() const { return furthest_; }  // the highest step that was ever finished
  // Steps and tokens of this run, each counted once: without those of the runs that it continues.
  std::int64_t trained_steps() const { return std::max(furthest_ - first_, std::int64_t{0}); }
  std::int64_t trained_tokens() const {
    return std::max(furthest_tokens_ - first_tokens_, std::int64_t{0});
  }
  std::optional<double> joules_per_token(EnergyLevel level) const;  // empty: no token was trained
  std::optional<double> save_s() const { return save_s_; }          // how long the last save took
  // The metered part of the time of all nodes, 0 to 1.
  double coverage(EnergyLevel level) const;
  std::optional<EnergyLevel> metered_level() const;  // the one that stands for the run

 private:
  void start(const GoodputEvent& event);
  void begin_attempt(const GoodputEvent& event);
  void close_lost(const GoodputEvent& next);
  // The part of the steps from last_ to `step` that was done before.
  double repeated_share(std::int64_t step) const;

  std::vector<Attempt> attempts_;
  GoodputEvent last_;  // of the current attempt
  bool ended_ = true;
  void reach(std::int64_t step, std::int64_t tokens);

  std::int64_t furthest_ = 0, furthest_tokens_ = 0;
  std::int64_t first_ = 0, first_tokens_ = 0;  // before the first attempt
  std::optional<double> save_s_;
};

// Adds the energy of all attempts to a report: phases, attempts, times, steps and metered time.
// Levels without any metered time stay empty.
void add_ledger(const Goodput& goodput, EnergyReport& report);

}  // namespace kintsugi
