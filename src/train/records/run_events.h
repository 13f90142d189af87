#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "train/config/config.h"
#include "train/records/notifier.h"
#include "train/records/run_files.h"
#include "train/records/stall_watch.h"

namespace kintsugi {

// What happens in a run: each event is a line of events.jsonl, and those of run.notify.on are sent
// to whoever wants to be told. Only rank 0 has one. Thread-safe; nothing throws.
class RunEvents {
 public:
  // `files` must outlive it. `now_s`: seconds since 1970.
  RunEvents(RunFiles& files, const std::filesystem::path& directory, const NotifyConfig& config,
            std::function<double()> now_s);

  // "resumed", "checkpoint" or "spike".
  void add(std::string_view event, std::int64_t step, const std::string& message) noexcept;
  // "finished", "stopped", "diverged" or "failed". Only the first one counts. Returns at once; it
  // is delivered in another thread.
  void end(std::string_view event, std::int64_t step, const std::string& message) noexcept;
  // Waits until the last event was delivered or its time was over. The destructor does that too.
  void wait_for_delivery() noexcept { notifier_.finish(); }
  // A function that waits for it without a limit, also when this object is gone.
  std::function<void()> delivery() const { return notifier_.waiter(); }

  // Signs of life. Before the first of them nothing can stall.
  void begin_steps() noexcept;
  void note_step(std::int64_t step, double seconds) noexcept;
  void note_activity() noexcept;  // not a step, but the run is alive
  // StallDetector::begin_long_work() while it exists. nullptr: on a rank without events.
  class LongWork {
   public:
    explicit LongWork(RunEvents* events);
    ~LongWork();
    LongWork(const LongWork&) = delete;
    LongWork& operator=(const LongWork&) = delete;

   private:
    StallWatch* watch_ = nullptr;
  };

 private:
  bool is_sent(std::string_view event) const;
  // Writes the line of events.jsonl and returns what is sent.
  Notification record(std::string_view event, std::int64_t step, const std::string& message);
  void report_stall(double seconds);

  RunFiles& files_;
  std::string run_;
  NotifyConfig config_;
  std::function<double()> now_s_;
  std::atomic<bool> ended_ = false;
  std::atomic<std::int64_t> step_ = 0;
  Notifier notifier_;
  std::optional<StallWatch> stall_watch_;  // last: its thread uses the others
};

}  // namespace kintsugi
