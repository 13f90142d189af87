#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kintsugi {

struct ScalarPoint {
  std::string tag;
  double value = 0;  // stored as fp32; may be NaN or infinite
};

// The records of an event file: TFRecord frames with an encoded Event.
std::string version_record(double wall_time_s);  // the first one of each file
// Readers discard the points of earlier records with this step or a later one.
std::string restart_record(double wall_time_s, std::int64_t step);
std::string scalars_record(double wall_time_s, std::int64_t step,
                           const std::vector<ScalarPoint>& points);

// Writes one TensorBoard event file, events.out.tfevents.SECONDS.HOST.PID.0, with the first points.
// Its name sorts after those of the files that the directory already has: readers read in this
// order. If a step follows that is not higher than the one before, and at the first step, a restart
// record comes first. Not thread-safe. A failed write is one warning: the points are kept in memory
// and tried again, up to a limit.
class EventFile {
 public:
  using Clock = std::function<double()>;  // seconds since 1970
  EventFile(std::filesystem::path directory, std::string host, Clock now_s);
  ~EventFile() { flush(); }
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Writes to the file at once, or after some seconds with later points.
  void add(std::int64_t step, const std::vector<ScalarPoint>& points) noexcept;
  void flush() noexcept;
  // Whether the run directory is the one that the first file was created in: another one may have
  // its name now, into which nothing is written.
  bool is_in_place();

 private:
  void create();

  std::filesystem::path directory_, file_;  // file_ is empty until it is created
  std::string host_;
  Clock now_s_;
  std::string unwritten_;  // whole records
  std::optional<std::int64_t> last_step_;
  double next_flush_s_ = 0;
  std::optional<std::pair<dev_t, ino_t>> place_;  // device and inode of the run directory
  bool lost_ = false;
};

}  // namespace kintsugi
