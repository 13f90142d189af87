#include "train/run_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

RunLog::RunLog(const std::filesystem::path& directory, std::int64_t total_steps)
    : directory_(directory), total_steps_(total_steps) {
  std::ifstream file(directory / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) ++sequence_;
}

void RunLog::record(const StepRecord& r) {
  Json json = {{"step", r.step},
               {"seq", sequence_++},
               {"tokens", r.tokens},
               {"loss", number(r.loss)},
               {"grad_norm", number(r.gradient_norm)},
               {"lr", r.lr},
               {"loss_scale", r.loss_scale},
               {"step_time_s", r.step_time_s},
               {"data_wait_s", r.data_wait_s},
               {"tokens_per_s", r.tokens_per_s},
               {"mfu", number(r.mfu_causal)},
               {"mfu_full_attention", number(r.mfu_full)},
               {"memory_bytes", r.memory_bytes},
               {"energy_j", number(r.energy_j)}};
  if (r.comm_busy_s) {
    json["comm_busy_s"] = *r.comm_busy_s;
    json["comm_wait_s"] = *r.comm_wait_s;
    json["comm_bytes"] = *r.comm_bytes;
  }
  if (r.valid_loss) {
    json["valid_loss"] = number(r.valid_loss);
    if (r.valid_bits_per_byte) json["valid_bits_per_byte"] = number(r.valid_bits_per_byte);
  }
  if (r.valid.size() > 1)
    for (const StepRecord::Valid& set : r.valid)
      json["valid"][set.name] = {{"loss", number(set.loss)},
                                 {"bits_per_byte", number(set.bits_per_byte)}};
  // One write per line: a killed run leaves whole lines behind.
  const std::string line = json.dump() + "\n";
  const std::filesystem::path path = directory_ / "metrics.jsonl";
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && ::write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const std::string reason = std::strerror(errno);
  if (file >= 0) ::close(file);
  if (!written) failure("cannot write {}: {}", path.string(), reason);
}

void RunLog::status(const std::string& state, const StepRecord& last,
                    std::optional<double> valid_loss, double eta_s, const std::string& checkpoint,
                    const std::string& message) noexcept {
  try {
    Json json = {{"state", state},
                 {"step", last.step},
                 {"total_steps", total_steps_},
                 {"tokens", last.tokens},
                 {"loss", number(last.loss)},
                 {"valid_loss", number(valid_loss)},
                 {"tokens_per_s", number(last.tokens_per_s)},
                 {"eta_s", number(eta_s)},
                 {"last_checkpoint", checkpoint.empty() ? Json(nullptr) : Json(checkpoint)},
                 {"pid", ::getpid()},
                 {"updated", utc_now()}};
    if (!message.empty()) json["message"] = message;
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    status_ = json.dump();
    write_file_atomically(directory_ / "status.json", json.dump(2) + "\n");
  } catch (...) {
  }
}

void RunLog::fail(const std::string& message) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    if (status_.empty()) return;
    Json json = Json::parse(status_);
    json["state"] = "failed";
    json["updated"] = utc_now();
    json["message"] = message;
    write_file_atomically(directory_ / "status.json", json.dump(2) + "\n");
  } catch (...) {
  }
}

}  // namespace kintsugi
