#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "train/config/config.h"

namespace kintsugi {

// What `kintsugi ctl` asks of a run that trains: RUN_DIR/control.json. Rank 0 removes the file once
// the run has obeyed or refused it.
struct ControlRequest {
  std::vector<std::pair<std::string, std::string>> set = {};  // key and value: optimizer.lr, 1e-4
  bool checkpoint = false;                                    // save now
  bool evaluate = false;                                      // validation and tasks now
  std::int64_t profile_steps = 0;                             // record the next ones
  bool operator==(const ControlRequest&) const = default;

  std::string text() const;  // "optimizer.lr=1e-4, checkpoint, profile of 2 steps"
};
// In events.jsonl: obeyed, or not.
inline constexpr const char* kControlEvent = "control";
inline constexpr const char* kControlRefused = "control refused";

std::filesystem::path control_file(const std::filesystem::path& run_dir);
std::string to_json(const ControlRequest& request);
// UserError that names `source` if the text is no request.
ControlRequest control_request_from_json(const std::string& text, const std::string& source);

// The keys that can be changed.
const std::vector<std::string>& control_keys();
// Sets a value in a configuration. UserError if there is no such key to change, or if the value is
// wrong.
void apply_control(StageConfig& config, const std::string& key, const std::string& value);
// UserError if a run with this configuration cannot do it.
void check_control(const StageConfig& config, const ControlRequest& request);

// A change that a run has obeyed: a line of RUN_DIR/control.jsonl. It holds after `step`, in the
// stage in which it was made, also when the run continues from an earlier checkpoint.
struct ControlChange {
  std::int64_t step = 0, stage = 0;
  std::string key = {}, value = {};
  bool operator==(const ControlChange&) const = default;
};
std::filesystem::path control_history(const std::filesystem::path& run_dir);
std::string to_line(const ControlChange& change);
// UserError that names `source` and the line.
std::vector<ControlChange> parse_control_history(const std::string& text,
                                                 const std::string& source);
// The configuration with the changes of its stage up to `step`.
StageConfig controlled(StageConfig config, const std::vector<ControlChange>& changes,
                       std::int64_t step);

}  // namespace kintsugi
