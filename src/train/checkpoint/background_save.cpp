#include "train/checkpoint/background_save.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "comm/exchange.h"
#include "core/error.h"

namespace kintsugi {
namespace {

// The training has priority where cores are scarce. On Linux the nice value is that of a thread,
// and the threads that this one starts inherit it.
void lower_priority() {
  constexpr int kNice = 10;
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
}

}  // namespace

BackgroundSave::BackgroundSave(Engine& engine) : engine_(engine), snapshot_(engine) {}

BackgroundSave::~BackgroundSave() {
  if (!under_way()) return;
  give(Order::Drop);  // no effect once it writes
  thread_.join();
}

void BackgroundSave::begin(const std::filesystem::path& checkpoints, TrainerState state,
                           CheckpointOptions options) {
  KINTSUGI_CHECK(!under_way(), "a save begins while another one is under way");
  snapshot_.take();
  // Also on a rank that copies nothing: its thread would wait for those of ranks that copy, and a
  // rank that fails alone in the next step could not end.
  order_ = Order::Wait;
  ended_ = false;
  error_ = nullptr;
  result_ = {};
  thread_ = std::thread([this, checkpoints, state = std::move(state),
                         options = std::move(options)] { work(checkpoints, state, options); });
}

void BackgroundSave::after_step() {
  if (!under_way()) return;
  snapshot_.finish();  // of nothing, if before_update() was called
  give(Order::Write);
}

void BackgroundSave::give(Order order) {
  {
    const std::lock_guard lock(mutex_);
    if (order_ == Order::Wait) order_ = order;
  }
  given_.notify_one();
}

void BackgroundSave::work(const std::filesystem::path& checkpoints, const TrainerState& state,
                          const CheckpointOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  lower_priority();
  std::unique_lock lock(mutex_);
  given_.wait(lock, [&] { return order_ != Order::Wait; });
  const bool writes = order_ == Order::Write;
  lock.unlock();
  try {
    if (writes) result_.model = write_checkpoint(checkpoints, engine_, state, options, &snapshot_);
  } catch (...) {
    error_ = std::current_exception();
  }
  result_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  ended_ = true;
}

bool BackgroundSave::ended() const {
  if (!under_way() || !ended_) return false;
  try {
    if (error_) std::rethrow_exception(error_);
  } catch (const SharedFailure&) {
    // finish() reports it.
  }
  return true;
}

BackgroundSave::Result BackgroundSave::finish() {
  KINTSUGI_CHECK(under_way(), "no save is under way");
  after_step();
  thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::exchange(result_, {});
}

}  // namespace kintsugi
