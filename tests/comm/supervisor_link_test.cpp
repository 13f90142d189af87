#include "comm/supervisor_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace kintsugi {
namespace {

using std::chrono::milliseconds;

template <class Done>
const SupervisorPort::State& poll_until(SupervisorPort& port, const Done& done) {
  for (int i = 0; i < 100; ++i)
    if (const auto& state = port.poll(milliseconds(100)); done(state)) return state;
  return port.poll(milliseconds(0));
}

// Accepts the run in another thread: connect() waits for the answer.
std::unique_ptr<SupervisorLink> connect_to_port(SupervisorPort& port,
                                                SupervisorLink::Callbacks callbacks) {
  std::unique_ptr<SupervisorLink> link;
  std::thread run(
      [&] { link = SupervisorLink::connect(port.address().c_str(), std::move(callbacks)); });
  poll_until(port, [](const auto& state) { return state.connected; });
  run.join();
  return link;
}

TEST(SupervisorLink, ReportsStepsAndTheEnd) {
  SupervisorPort port(true);
  const auto link = connect_to_port(
      port,
      {.step = [] { return 41; }, .silence_s = [] { return 10.0; }, .stop = [](const auto&) {}});
  ASSERT_TRUE(link);
  EXPECT_EQ(poll_until(port, [](const auto& state) { return state.step > 0; }).step, 41);
  const RunEnd end{.exit_code = 3,
                   .failure = {.kind = FailureKind::Stuck,
                               .culprits = {{2, "nid007"}, {3, ""}},
                               .file = "a file",
                               .text = "two\nlines of text"},
                   .stop = StopCause::File};
  link->ended(end);
  link->ended({.failure = {.text = "a later error"}});
  const auto state = poll_until(port, [](const auto& now) { return now.end.has_value(); });
  ASSERT_TRUE(state.end);
  EXPECT_EQ(*state.end, end);
}

TEST(SupervisorLink, PassesTheRequestToStop) {
  SupervisorPort port(true);
  std::mutex mutex;
  std::string reason;
  const auto read = [&] {
    const std::lock_guard lock(mutex);
    return reason;
  };
  const auto stop = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    reason = text;
  };
  const auto link = connect_to_port(
      port, {.step = [] { return 0; }, .silence_s = [] { return 10.0; }, .stop = stop});
  port.ask_to_stop("the job was cancelled");
  for (int i = 0; i < 100 && read().empty(); ++i) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(read(), "the job was cancelled");
}

TEST(SupervisorLink, TheRunNoticesALostSupervisor) {
  std::atomic<bool> lost = false;
  auto port = std::make_unique<SupervisorPort>(true);
  const auto link = connect_to_port(*port, {.step = [] { return 0; },
                                            .silence_s = [] { return 10.0; },
                                            .stop = [&](const std::string&) { lost = true; }});
  port.reset();
  for (int i = 0; i < 100 && !lost; ++i) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(lost);
}

TEST(SupervisorLink, WithoutASupervisor) {
  const SupervisorLink::Callbacks none = {
      .step = [] { return 0; }, .silence_s = [] { return 10.0; }, .stop = [](const auto&) {}};
  EXPECT_FALSE(SupervisorLink::connect(nullptr, none));
  EXPECT_FALSE(SupervisorLink::connect("", none));
  EXPECT_FALSE(SupervisorLink::connect("not an address", none));
  EXPECT_FALSE(SupervisorLink::connect("password 1 127.0.0.1", none));  // nobody listens
}

}  // namespace
}  // namespace kintsugi
