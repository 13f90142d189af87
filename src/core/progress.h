#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace kintsugi {

// How far a lower layer is: what is done of what is to do, in its own unit.
using ProgressCall = std::function<void(std::int64_t done, std::int64_t all)>;

// Where progress is shown, and the clock; tests have their own.
struct ProgressOutput {
  bool live = false;              // a line that the next one overwrites; otherwise log lines
  std::function<double()> now_s;  // steady
  std::function<void(const std::string& line)> show;
};
// The terminal, if standard output is one; otherwise notes in the log, which do not mix with a
// result on standard output.
ProgressOutput terminal_progress();

// Shows how far a long piece of work is, with its rate and the time that is left:
//   verify  63 %  1.2 GiB of 1.9 GiB  312 MiB/s  ETA 2 s
// On a terminal a live line; elsewhere a log line every 30 s, so none for shorter work. All calls
// are thread-safe and cheap enough for each block of work.
class Progress {
 public:
  // `unit`: "bytes", or what is counted ("documents"). total 0: not known (yet).
  Progress(std::string what, std::int64_t total, std::string unit,
           ProgressOutput output = terminal_progress());
  ~Progress();  // removes the live line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t more);
  void set(std::int64_t done);
  void set(std::int64_t done, std::int64_t total);
  // Work that was done before: it counts as done, but not in the rate.
  void start_at(std::int64_t done);
  // More about the work, for the end of the line. Called only when a line is shown.
  void set_note(std::function<std::string()> note);
  // For functions that take a callback. The progress must outlive it.
  ProgressCall callback() {
    return [this](std::int64_t done, std::int64_t all) { set(done, all); };
  }

  std::int64_t done() const { return done_.load(std::memory_order_relaxed); }
  double elapsed_s() const { return output_.now_s() - start_s_; }

 private:
  void show_if_due();
  std::string line(double now_s) const;
  std::string amount(double value) const;

  const std::string what_, unit_;
  const ProgressOutput output_;
  const double start_s_;
  std::atomic<std::int64_t> done_ = 0, before_ = 0, total_;
  std::atomic<double> next_s_;  // when the next line is due
  std::mutex mutex_;            // guards note_, and is held while a line is shown
  std::function<std::string()> note_;
  bool shown_ = false;
};

}  // namespace kintsugi
