#pragma once

#include <functional>
#include <memory>
#include <string>

namespace kintsugi {

// Something that happened in a run, for a person who does not watch it.
struct Notification {
  std::string event;    // "finished"
  std::string message;  // in one sentence
  std::string json;     // the same for programs
};

struct NotifierOptions {
  std::string command = {};  // of the shell; empty: none
  std::string webhook = {};  // http://…; empty: none
  std::string run = {};      // the run directory
  double limit_s = 15;       // for a command or a request
};

// Runs the command and posts to the webhook, in a thread of its own and one after the other. What
// goes wrong is a warning: nothing here throws or delays the caller, except finish().
class Notifier {
 public:
  explicit Notifier(NotifierOptions options);
  ~Notifier();  // finish()
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Returns at once. If the command cannot keep up, the oldest ones are left out.
  void send(Notification notification) noexcept;
  // Instead of what was not delivered yet: the last one of the run.
  void send_last(Notification notification) noexcept;
  // Waits until everything is delivered or given up, which the limits bound.
  void finish() noexcept;
  // A function that waits like finish(), but without a limit. It may be called when the notifier is
  // gone.
  std::function<void()> waiter() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may have to be left behind
};

}  // namespace kintsugi
