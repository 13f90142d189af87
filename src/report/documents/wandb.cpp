#include "report/documents/wandb.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "report/documents/exports.h"
#include "report/documents/protobuf.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace fs = std::filesystem;
using namespace protobuf;
namespace {

constexpr double kFlushInterval_s = 5;
constexpr std::size_t kLargestBuffer = 1 << 22;  // if nothing can be written
constexpr std::size_t kMostConfig = 1 << 20;     // bytes

constexpr std::string_view kBeginning(":W&B\xE1\xBE\0", 7);  // the last byte is the version
constexpr std::uint64_t kBlock = 32768, kFrameHeader = 7;
enum FrameType : std::uint8_t { kFull = 1, kFirst, kMiddle, kLast };

constexpr const char* kProject = "kintsugi";

// The fields of Record.
enum RecordField : unsigned {
  kNumber = 1,
  kHistory = 2,
  kSummary = 3,
  kRun = 17,
  kExit = 18,
  kHeader = 21
};

// Text that is not UTF-8 would make readers refuse the record.
std::string text_field(std::string_view text) { return printable(text); }

// An item of HistoryRecord, ConfigRecord and SummaryRecord.
void put_item(std::string& out, unsigned field, std::string_view key, std::string_view json) {
  std::string item;
  put_bytes(item, 1, text_field(key));
  put_bytes(item, 16, json);
  put_bytes(out, field, item);
}

std::string quoted(const std::string& text) { return compact_json(nlohmann::ordered_json(text)); }

// A value of a configuration: numbers, lists and words of JSON as they are, other text in quotes.
std::string config_json(const std::string& text) {
  const auto json = parse_untrusted_json(text);
  return json && !json->is_object() && !json->is_string() ? compact_json(*json) : quoted(text);
}

// Empty: unknown, or nothing that JSON can say.
std::string value_json(const RecordValue& value) {
  if (value.kind == JsonMember::Kind::Text) return quoted(value.text);
  if (value.kind == JsonMember::Kind::Word) return value.text;
  return value.number() ? value.text : "";
}

std::string run_message(const TrackerRun& run) {
  std::string config, start, message;
  for (const auto& [key, value] : run.config) put_item(config, 1, key, config_json(value));
  const double seconds = std::floor(run.start_s);
  put_number(start, 1, static_cast<std::int64_t>(seconds));
  put_number(start, 2, static_cast<std::int64_t>(1e9 * (run.start_s - seconds)));
  put_bytes(message, 1, run.id);
  put_bytes(message, 3, kProject);
  put_bytes(message, 4, config);
  put_bytes(message, 8, text_field(run.name));
  put_bytes(message, 17, start);
  return message;
}

void put_frame(std::string& out, FrameType type, std::string_view data) {
  std::string checked(1, static_cast<char>(type));
  checked += data;
  const auto* bytes = reinterpret_cast<const Bytef*>(checked.data());
  put_fixed(out, static_cast<std::uint32_t>(::crc32_z(0, bytes, checked.size())));
  put_fixed(out, static_cast<std::uint16_t>(data.size()));
  out += checked;
}

}  // namespace

std::string run_id(const fs::path& run_dir, double launched_s) {
  fs::path whole = fs::absolute(run_dir).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "runs/a/"
  return hex64(hash64(fmt::format("{} {:.3f}", whole.filename().string(), launched_s)));
}

ConfigValues tracked_config(const fs::path& run_dir) {
  return config_values(read_run_file(resolved(run_dir) / "config.yaml", kMostConfig).text);
}

// One record, split where a block ends. A block's last bytes are zeros if no header fits.
std::string WandbEncoder::framed(unsigned field, std::string_view message) {
  std::string record, out;
  put_number(record, kNumber, ++records_);
  put_bytes(record, field, message);
  std::string_view rest = record;
  for (bool first = true; first || !rest.empty(); first = false) {
    std::uint64_t left = kBlock - (offset_ + out.size()) % kBlock;
    if (left < kFrameHeader) {
      out.append(left, '\0');
      left = kBlock;
    }
    const std::size_t size = std::min<std::size_t>(rest.size(), left - kFrameHeader);
    const bool last = size == rest.size();
    put_frame(out, first ? last ? kFull : kFirst : last ? kLast : kMiddle, rest.substr(0, size));
    rest.remove_prefix(size);
  }
  offset_ += out.size();
  return out;
}

std::string WandbEncoder::begin(const TrackerRun& run) {
  *this = {};
  start_s_ = run.start_s;
  offset_ = kBeginning.size();
  std::string out(kBeginning);
  out += framed(kHeader, "");
  return out + framed(kRun, run_message(run));
}

std::string WandbEncoder::history(const RecordValues& values) {
  const auto step = number_of(values, "step");
  if (!step || std::abs(*step) > 9e15) return "";
  const auto number = static_cast<std::int64_t>(*step);
  const double time_s = number_of(values, "time_s").value_or(start_s_);
  std::string message, step_message;
  for (const RecordValue& value : values) {
    if (value.name == "seq" || value.name == "time_s") continue;
    const std::string json = value_json(value);
    if (json.empty()) continue;
    put_item(message, 1, value.name, json);
    newest_[value.name] = json;
  }
  for (const auto& [key, json] : {std::pair("_step", fmt::format("{}", number)),
                                  {"_runtime", fmt::format("{:.6f}", time_s - start_s_)},
                                  {"_timestamp", fmt::format("{:.6f}", time_s)}}) {
    put_item(message, 1, key, json);
    newest_[key] = json;
  }
  put_number(step_message, 1, number);
  put_bytes(message, 2, step_message);
  return framed(kHistory, message);
}

std::string WandbEncoder::summary() {
  std::string message;
  for (const auto& [key, json] : newest_) put_item(message, 1, key, json);
  return framed(kSummary, message);
}

std::string WandbEncoder::exit(int code, double end_s) {
  std::string message;
  put_number(message, 1, code);
  put_number(message, 2, static_cast<std::int64_t>(std::clamp(end_s - start_s_, 0.0, 2e9)));
  return framed(kExit, message);
}

std::string wandb_directory(double time_s, const std::string& id) {
  const auto time = static_cast<std::time_t>(std::clamp(time_s, 0.0, 2e11));
  return fmt::format("offline-run-{:%Y%m%d_%H%M%S}-{}", fmt::gmtime(time), id);
}

WandbFile::WandbFile(const fs::path& run_dir, Clock now_s)
    : directory_(run_dir / "wandb"), now_s_(std::move(now_s)) {}

void WandbFile::create() {
  std::error_code error;
  fs::create_directory(directory_, error);  // not a run directory that was moved away
  // Two files of a run that begin in one second have different names.
  for (double time_s = now_s_(); !error; time_s += 1) {
    const fs::path folder = directory_ / wandb_directory(time_s, id_);
    if (!fs::create_directory(folder, error) && !error) continue;
    if (error) break;
    file_ = folder / fmt::format("run-{}.wandb", id_);
    return;
  }
  failure("cannot create {}: {}", directory_.string(), error.message());
}

void WandbFile::add(std::string_view line, const std::function<TrackerRun()>& facts) noexcept {
  try {
    std::error_code unknown;
    const bool removed = begun_ && !fs::exists(file_, unknown);  // users may do that
    if (id_.empty() || removed || unwritten_.size() > kLargestBuffer) {
      const TrackerRun run = facts();
      id_ = run.id;
      if (std::exchange(begun_, false)) file_.clear();
      unwritten_ = encoder_.begin(run);
    }
    unwritten_ += encoder_.history(record_values(line));
    if (now_s_() >= next_flush_s_) {
      unwritten_ += encoder_.summary();
      flush();
    }
  } catch (...) {  // no memory
  }
}

void WandbFile::end(int exit_code) noexcept {
  try {
    if (id_.empty()) return;  // no step was trained
    unwritten_ += encoder_.summary();
    unwritten_ += encoder_.exit(exit_code, now_s_());
    flush();
  } catch (...) {
  }
}

void WandbFile::flush() noexcept {
  if (unwritten_.empty()) return;
  try {
    next_flush_s_ = now_s_() + kFlushInterval_s;
    if (file_.empty()) create();
    append_to_file(file_, unwritten_);
    unwritten_.clear();
    begun_ = true;
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (!begun_ && !file_.empty()) fs::remove(file_, ignored);  // an empty file is none of W&B's
    if (std::exchange(lost_, true)) return;
    log_warning("{}: the run continues, but points may be missing in W&B", error.what());
  }
}

}  // namespace kintsugi
