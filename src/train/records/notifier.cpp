#include "train/records/notifier.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "core/child_output.h"
#include "core/error.h"
#include "core/log.h"
#include "http/http_post.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostQueued = 8;
constexpr std::size_t kMostShownOutput = 200;

void run_command(const NotifierOptions& options, const Notification& one) {
  const ChildOutput output =
      run_captured({"/bin/sh", "-c", options.command},
                   {.timeout_s = options.limit_s,
                    .with = {"KINTSUGI_EVENT=" + one.event, "KINTSUGI_RUN=" + options.run,
                             "KINTSUGI_MESSAGE=" + printable(one.message)},
                    .input = one.json + "\n"});
  if (output.timed_out) failure("it was killed after {} s", options.limit_s);
  if (!output.found) failure("there is no /bin/sh");
  const std::string error = output.error.substr(0, output.error.find_last_not_of(" \r\n") + 1);
  if (output.code != 0)
    failure("exit code {}{}", output.code,
            error.empty() ? "" : ": " + error.substr(0, kMostShownOutput));
}

void post_to_webhook(const NotifierOptions& options, const Notification& one) {
  const int status =
      http_post(parse_http_address(options.webhook), "application/json", one.json, options.limit_s);
  if (status < 200 || status > 299) failure("the answer is status {}", status);
}

}  // namespace

struct Notifier::State {
  NotifierOptions options;
  std::mutex mutex;  // guards everything below
  std::deque<Notification> queue;
  bool busy = false, ended = false;
  bool abandoned = false;  // nobody waits any longer: no messages
  std::condition_variable changed;
  std::thread thread;

  bool is_done() const { return queue.empty() && !busy; }
  void push(Notification notification);
  void deliver_all();
  void deliver(const Notification& one);
  void attempt(const char* key, const Notification& one, const auto& work);
};

Notifier::Notifier(NotifierOptions options) : state_(std::make_shared<State>()) {
  state_->options = std::move(options);
}

Notifier::~Notifier() { finish(); }

// With the lock. The thread starts with the first notification.
void Notifier::State::push(Notification notification) {
  if (ended) return;
  queue.push_back(std::move(notification));
}

void Notifier::send(Notification notification) noexcept {
  const NotifierOptions& options = state_->options;
  if (options.command.empty() && options.webhook.empty()) return;
  try {
    const std::lock_guard lock(state_->mutex);
    state_->push(std::move(notification));
    if (state_->queue.size() > kMostQueued) state_->queue.pop_front();
    if (!state_->thread.joinable())
      state_->thread = std::thread([state = state_] { state->deliver_all(); });
    state_->changed.notify_all();
  } catch (const std::exception& error) {
    log_warning("run.notify: {}", error.what());
  }
}

void Notifier::send_last(Notification notification) noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.clear();
  }
  send(std::move(notification));
}

void Notifier::finish() noexcept {
  std::unique_lock lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
  if (!state_->thread.joinable()) return;
  // The one under way and the last one, each by command and webhook. Looking up the name of a host
  // has no limit of its own.
  const std::chrono::duration<double> longest(4 * state_->options.limit_s + 1);
  const bool done = state_->changed.wait_for(lock, longest, [&] { return state_->is_done(); });
  std::thread thread = std::move(state_->thread);
  state_->abandoned = !done;
  lock.unlock();
  if (!thread.joinable()) return;  // another thread has waited too
  done ? thread.join() : thread.detach();
}

std::function<void()> Notifier::waiter() const {
  return [state = state_] {
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->is_done(); });
  };
}

void Notifier::State::deliver_all() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return ended || !queue.empty(); });
    if (queue.empty()) return;
    const Notification one = std::move(queue.front());
    queue.pop_front();
    busy = true;
    lock.unlock();
    deliver(one);
    lock.lock();
    busy = false;
    changed.notify_all();
  }
}

void Notifier::State::deliver(const Notification& one) {
  if (!options.command.empty()) attempt("command", one, [&] { run_command(options, one); });
  if (!options.webhook.empty()) attempt("webhook", one, [&] { post_to_webhook(options, one); });
}

void Notifier::State::attempt(const char* key, const Notification& one, const auto& work) {
  std::string problem;
  try {
    return work();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const std::lock_guard lock(mutex);
  if (!abandoned) log_warning("run.notify.{} for event {} failed: {}", key, one.event, problem);
}

}  // namespace kintsugi
