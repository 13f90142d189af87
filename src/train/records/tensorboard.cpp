#include "train/records/tensorboard.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "report/documents/protobuf.h"

namespace kintsugi {
namespace fs = std::filesystem;
using namespace protobuf;
namespace {

constexpr double kFlushInterval_s = 5;
constexpr std::size_t kLargeBuffer = 1 << 16;    // is written without waiting
constexpr std::size_t kLargestBuffer = 1 << 22;  // if nothing can be written
constexpr std::string_view kEventPrefix = "events.out.tfevents.";

// ---- event.proto and summary.proto

std::string event_of(double wall_time_s, std::int64_t step) {
  std::string event;
  put_double(event, 1, wall_time_s);
  if (step != 0) put_number(event, 2, step);  // 0 is the default
  return event;
}

std::string value_of(const ScalarPoint& point) {
  std::string value;
  // A tag that is not UTF-8 would make readers refuse the record.
  std::string tag = printable(point.tag);
  std::ranges::replace_if(
      tag, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  put_bytes(value, 1, tag);
  put_float(value, 2, static_cast<float>(point.value));
  return value;
}

std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

std::string frame(std::string_view event) {
  std::string record;
  put_fixed(record, static_cast<std::uint64_t>(event.size()));
  put_fixed(record, masked_crc(record));
  record += event;
  put_fixed(record, masked_crc(event));
  return record;
}

// ---- file names

// The seconds in the name of an event file; 0 if it is none.
std::int64_t seconds_in(const std::string& name) {
  if (!name.starts_with(kEventPrefix)) return 0;
  std::int64_t seconds = 0;
  std::from_chars(name.data() + kEventPrefix.size(), name.data() + name.size(), seconds);
  return seconds;
}

// Higher than those of all files in the directory, also if the clock was set back.
std::int64_t seconds_of_next(const fs::path& directory, double now_s) {
  constexpr std::int64_t kLargest = 9999999998;  // names have ten digits
  std::int64_t next = std::clamp(static_cast<std::int64_t>(now_s), std::int64_t{0}, kLargest);
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error))
    if (const std::int64_t there = seconds_in(entry.path().filename().string()); there <= kLargest)
      next = std::max(next, there + 1);
  return next;
}

std::string name_part(std::string text) {
  for (char& c : text)
    if (std::string_view("/.\\ ").find(c) != std::string_view::npos || c < '!' || c > '~') c = '-';
  return text.empty() ? "localhost" : text.substr(0, 64);
}

}  // namespace

std::string version_record(double wall_time_s) {
  std::string event = event_of(wall_time_s, 0);
  put_bytes(event, 3, "brain.Event:2");
  return frame(event);
}

std::string restart_record(double wall_time_s, std::int64_t step) {
  std::string session_log;  // {status: START}
  put_number(session_log, 1, 1);
  std::string event = event_of(wall_time_s, step);
  put_bytes(event, 7, session_log);
  return frame(event);
}

std::string scalars_record(double wall_time_s, std::int64_t step,
                           const std::vector<ScalarPoint>& points) {
  std::string summary;
  for (const ScalarPoint& point : points) put_bytes(summary, 1, value_of(point));
  std::string event = event_of(wall_time_s, step);
  put_bytes(event, 5, summary);
  return frame(event);
}

EventFile::EventFile(fs::path directory, std::string host, Clock now_s)
    : directory_(std::move(directory)),
      host_(name_part(std::move(host))),
      now_s_(std::move(now_s)) {}

bool EventFile::is_in_place() {
  struct stat found {};
  if (::stat(directory_.parent_path().c_str(), &found) != 0) return true;  // create() reports it
  const auto place = std::pair(found.st_dev, found.st_ino);
  if (!place_) place_ = place;
  return place == *place_;
}

void EventFile::create() {
  if (!is_in_place()) return unwritten_.clear();
  std::error_code error;
  fs::create_directory(directory_, error);  // not a run directory that was moved away
  if (error) failure("cannot create {}: {}", directory_.string(), error.message());
  const double now_s = now_s_();
  const fs::path file =
      directory_ / fmt::format("{}{:010}.{}.{}.0", kEventPrefix, seconds_of_next(directory_, now_s),
                               host_, ::getpid());
  try {
    append_to_file(file, version_record(now_s));
  } catch (...) {
    fs::remove(file, error);
    throw;
  }
  file_ = file;
}

void EventFile::add(std::int64_t step, const std::vector<ScalarPoint>& points) noexcept {
  try {
    const double now_s = now_s_();
    if (unwritten_.size() > kLargestBuffer) {
      unwritten_.clear();
      last_step_.reset();
    }
    if (!last_step_ || step <= *last_step_) unwritten_ += restart_record(now_s, step);
    last_step_ = step;
    unwritten_ += scalars_record(now_s, step, points);
    if (now_s >= next_flush_s_ || (unwritten_.size() > kLargeBuffer && !lost_)) flush();
  } catch (...) {  // no memory
  }
}

void EventFile::flush() noexcept {
  if (unwritten_.empty()) return;
  try {
    next_flush_s_ = now_s_() + kFlushInterval_s;
    std::error_code unknown;
    if (file_.empty() || !fs::exists(file_, unknown)) create();  // users may remove it
    if (unwritten_.empty()) return;
    append_to_file(file_, unwritten_);
    unwritten_.clear();
  } catch (const std::exception& error) {
    if (std::exchange(lost_, true)) return;
    log_warning("{}: the run continues, but points may be missing in TensorBoard", error.what());
  }
}

}  // namespace kintsugi
