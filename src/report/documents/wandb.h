#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "report/runs/config_differences.h"

namespace kintsugi {

// What trackers show of a run besides its metrics.
struct TrackerRun {
  std::string id = {}, name = {};  // id: run_id()
  double start_s = 0;              // of the first attempt, since 1970
  ConfigValues config = {};        // without secrets
};
// Names a run in energy.json and in trackers: a hash of the name of its directory and of when its
// first attempt was launched, so it is the same in all attempts.
std::string run_id(const std::filesystem::path& run_dir, double launched_s);
// The configuration in the config.yaml of a run.
ConfigValues tracked_config(const std::filesystem::path& run_dir);

struct RecordValue;

// Encodes the log that W&B writes in its offline mode, run-ID.wandb: protobuf records in blocks of
// 32 KiB, as LevelDB's logs. The format is internal to W&B; this is its version 0. What the
// functions return is appended to the file, in the order of the calls.
class WandbEncoder {
 public:
  std::string begin(const TrackerRun& run);  // of the file
  // A record of metrics.jsonl. Empty if it has no step.
  std::string history(const std::vector<RecordValue>& values);
  std::string summary();                     // the newest value of each metric
  std::string exit(int code, double end_s);  // without it, W&B takes the run as crashed

 private:
  std::string framed(unsigned field, std::string_view message);

  std::uint64_t offset_ = 0;  // in the file
  std::int64_t records_ = 0;
  double start_s_ = 0;
  std::map<std::string, std::string> newest_;  // as JSON
};

// "offline-run-20261119_134500-6106e00e2b28aded", as W&B names the directories of runs.
std::string wandb_directory(double time_s, const std::string& id);

// The same log, written while a run trains: RUN_DIR/wandb/offline-run-…-ID/run-ID.wandb. Each
// WandbFile is a new file of the same W&B run, as W&B writes one per process. Whole records are
// appended every few seconds. Not thread-safe. A failed write is one warning: the records are kept
// in memory and tried again, up to a limit; then a new file begins.
class WandbFile {
 public:
  using Clock = std::function<double()>;  // seconds since 1970
  WandbFile(const std::filesystem::path& run_dir, Clock now_s);
  ~WandbFile() { flush(); }
  WandbFile(const WandbFile&) = delete;
  WandbFile& operator=(const WandbFile&) = delete;

  // A line of metrics.jsonl. `facts` is called when a file begins.
  void add(std::string_view line, const std::function<TrackerRun()>& facts) noexcept;
  void end(int exit_code) noexcept;
  void flush() noexcept;

 private:
  void create();

  std::filesystem::path directory_, file_;  // file_ is empty until it is created
  Clock now_s_;
  WandbEncoder encoder_;
  std::string id_;         // empty: no file has begun
  std::string unwritten_;  // whole records
  double next_flush_s_ = 0;
  bool begun_ = false, lost_ = false;  // begun: the file has records
};

}  // namespace kintsugi
