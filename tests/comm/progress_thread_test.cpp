#include "comm/progress_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "core/error.h"

namespace kintsugi {
namespace {

// Done when the gate is open; records when it starts and ends.
class Gated : public Operation {
 public:
  Gated(char name, std::string& events, std::atomic<bool>& gate)
      : name_(name), events_(events), gate_(gate) {}
  bool advance() override {
    if (!begun_) events_ += name_;
    begun_ = true;
    if (!gate_) return false;
    events_ += static_cast<char>(name_ - 'a' + 'A');
    bytes_sent_ = 10;
    return true;
  }

 private:
  char name_;
  std::string& events_;  // written by the thread; read when all is done
  std::atomic<bool>& gate_;
  bool begun_ = false;
};

class Broken : public Operation {
 public:
  bool advance() override { failure("no route to host"); }
};

TEST(ProgressThread, LanesRunInOrderAndTheRestConcurrently) {
  std::string events;
  std::atomic<bool> lane_gate = false, gate = true;
  CommunicationTimes times;
  ProgressThread thread;
  const int lane = 0;
  const auto a = std::make_shared<Gated>('a', events, lane_gate);
  const auto b = std::make_shared<Gated>('b', events, lane_gate);
  const auto c = std::make_shared<Gated>('c', events, gate);
  thread.submit(a, &lane, times);
  thread.submit(b, &lane, times);
  thread.submit(c, nullptr, times);
  thread.wait(*c);  // a and b are still in flight
  EXPECT_EQ(thread.read(times).finished, 1);
  EXPECT_FALSE(thread.idle());
  lane_gate = true;
  thread.wait(*b);
  thread.wait(*a);
  EXPECT_EQ(events, "acCAbB");
  EXPECT_TRUE(thread.idle());
  EXPECT_EQ(thread.read(times).started, 3);
  EXPECT_EQ(thread.read(times).finished, 3);
  EXPECT_EQ(thread.read(times).bytes, 30);
  EXPECT_GT(thread.read(times).busy_s, 0);
}

TEST(ProgressThread, WaitRethrowsExceptions) {
  ProgressThread thread;
  CommunicationTimes times;
  const auto broken = std::make_shared<Broken>();
  thread.submit(broken, nullptr, times);
  EXPECT_THROW(thread.wait(*broken), Failure);
  EXPECT_THROW(thread.run([] { user_error("of the task"); }), UserError);
  int value = 0;
  thread.run([&] { value = 3; });
  EXPECT_EQ(value, 3);
}

TEST(ProgressThread, NoProgressAfterFreeze) {
  std::string events;
  std::atomic<bool> gate = false;
  CommunicationTimes times;
  ProgressThread thread;
  const auto stuck = std::make_shared<Gated>('a', events, gate);
  thread.submit(stuck, nullptr, times);
  thread.freeze();
  gate = true;
  EXPECT_THROW(thread.wait(*stuck), Failure);
  EXPECT_THROW(thread.run([] {}), Failure);
  EXPECT_EQ(events.find('A'), std::string::npos);
}

// A rank that fails abandons its operations.
TEST(ProgressThread, EndsWithOperationsInFlight) {
  std::string events;
  std::atomic<bool> gate = false;
  CommunicationTimes times;
  ProgressThread thread;
  thread.submit(std::make_shared<Gated>('a', events, gate), nullptr, times);
}

}  // namespace
}  // namespace kintsugi
