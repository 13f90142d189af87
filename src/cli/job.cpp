#include "cli/job.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <system_error>
#include <thread>

#include "comm/checked_communicator.h"
#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "comm/mpi/mpi_world.h"
#include "core/error.h"
#include "core/log.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

constexpr auto kExitPatience = std::chrono::seconds(2), kFailurePatience = std::chrono::seconds(5);

// Runs `work` in a thread of its own and waits for it, but not longer than `patience`.
void run_briefly(const std::function<void()>& work, std::chrono::seconds patience) {
  if (!work) return;
  std::packaged_task<void()> task(work);  // keeps exceptions: the process ends in any case
  const std::future<void> done = task.get_future();
  try {
    std::thread(std::move(task)).detach();
  } catch (const std::system_error&) {
    return;  // no thread is left
  }
  done.wait_for(patience);
}

}  // namespace

void Job::end_process(int exit_code) {
  const std::lock_guard ending(ending_);  // a second thread waits here for the end
  std::function<void()> listener, after_failure;
  {
    const std::lock_guard lock(mutex_);
    listener = on_exit_;
    after_failure = after_failure_;
  }
  run_briefly(listener, kExitPatience);
  run_briefly(after_failure, kFailurePatience);
  std::fflush(nullptr);
  ::_exit(exit_code);  // this rank may wait for a message that never arrives
}

Lifeline::Callbacks Job::lifeline_callbacks() {
  return {.on_message = [](int rank,
                           const std::string& text) { log_warning("rank {}: {}", rank, text); },
          .on_failure =
              [this](const RankFailure& failure, const std::vector<std::string>& positions) {
                log_message(LogLevel::Error, failure.text);
                tell_supervisor(failure);
                const std::lock_guard lock(mutex_);
                if (on_failure_) after_failure_ = on_failure_(failure, positions);
              },
          .end =
              [this](const RankFailure& failure) {
                const bool lost =
                    failure.kind == FailureKind::Lost || failure.kind == FailureKind::Silent;
                if (lost && failure.rank() == 0 && world_->rank() == 1)
                  fmt::print(stderr, "error: {}\n", failure.text);
                end_process(failure.exit_code());
              },
          .positions = [this](int lost) { return positions_here(*recorder_, flight_key_, lost); },
          .waiting_s = [this] { return recorder_->waiting_s(); },
          .has_begun = [this] { return recorder_->step() > 0; }};
}

Job::Job(Trace* trace)
    : world_(make_world(trace)), control_(world_->split("control", 0, world_->rank())) {
  flight_key_ = broadcast_text(make_password().substr(0, 16));
  recorder_ = std::make_unique<FlightRecorder>(world_->rank(), node_name(),
                                               recorder_file(flight_key_, world_->rank()));
  if (world_->rank() == 0)
    link_ = SupervisorLink::connect(
        std::getenv(kSupervisorVariable),
        {.step = [this] { return recorder_->step(); },
         .silence_s = [this] { return (recorder_->step() > 0 ? 1 : 3) * silence_s_; },
         .stop =
             [this](const std::string& reason) {
               const std::lock_guard lock(mutex_);
               stop_request_ = reason;
               if (on_stop_request_) on_stop_request_(reason);
             }});
  if (world_->size() == 1) return;
  disable_live_line();
  lifeline_ = std::make_unique<Lifeline>(*world_, lifeline_callbacks());
  if (world_->rank() == 0) return;
  redirect_log([this](LogLevel level, std::string_view message) {
    if (level == LogLevel::Warning && lifeline_) lifeline_->say(std::string(message));
  });
}

Job::~Job() {
  // From here on only rank 0 writes messages.
  if (world_->size() > 1 && world_->rank() > 0) redirect_log([](LogLevel, std::string_view) {});
}

void Job::on_failure(FailureListener listener) {
  const std::lock_guard lock(mutex_);
  on_failure_ = std::move(listener);
}

void Job::on_exit(std::function<void()> listener) {
  before_second_interrupt(listener);
  const std::lock_guard lock(mutex_);
  on_exit_ = std::move(listener);
}

void Job::on_stop_request(std::function<void(const std::string&)> listener) {
  const std::lock_guard lock(mutex_);
  on_stop_request_ = std::move(listener);
  if (on_stop_request_ && !stop_request_.empty()) on_stop_request_(stop_request_);
}

void Job::set_limits(double silence_s, double call_s) {
  silence_s_ = silence_s;
  if (lifeline_) lifeline_->set_limits(silence_s, call_s);
}

void Job::tell_supervisor(const RankFailure& failure) {
  if (link_) link_->ended({.exit_code = failure.exit_code(), .failure = failure});
}

void Job::together(const std::function<void()>& work) { kintsugi::together(*control_, work); }

void Job::check_agreement(const Facts& facts) { kintsugi::check_agreement(*control_, facts); }

std::string Job::broadcast_text(const std::string& text) { return text_of(*control_, 0, text); }

void Job::abort(const RankFailure& failure) {
  if (!lifeline_) return tell_supervisor(failure);
  lifeline_->fail(failure);
  end_process(failure.exit_code());  // no destructors: pending collectives use this rank's memory
}

void Job::report_shared_error(const RankFailure& failure) {
  if (!lifeline_) return tell_supervisor(failure);
  if (world_->rank() == 0) tell_supervisor(lifeline_->with_nodes(failure));
  // Before any rank exits: a launcher ends the job at the first non-zero exit code.
  if (world_->rank() == 0) log_message(LogLevel::Error, failure.text);
  lifeline_->goodbye();
  redirect_log([](LogLevel, std::string_view) {});
}

void Job::run(const std::function<void()>& work) {
  try {
    work();
    if (lifeline_) lifeline_->goodbye();
    const bool stopped = stop_ != StopCause::None;
    if (link_)
      link_->ended(
          {.exit_code = stopped ? exit_code::kStopped : exit_code::kFinished, .stop = stop_});
  } catch (const SharedUserError& error) {
    report_shared_error(error.failure());
    throw;
  } catch (const SharedFailure& error) {
    report_shared_error(error.failure());
    throw;
  } catch (const std::exception& error) {
    abort(failure_of(error, {world_->rank(), node_name()}));
    throw;
  }
}

std::int64_t threads_for(std::int64_t configured, const World& world) {
  if (configured > 0 || world.local_size() == 1) return configured;
  return std::max<std::int64_t>(
      1, std::thread::hardware_concurrency() / static_cast<unsigned>(world.local_size()));
}

JobGroups::JobGroups(Job& job, Backend& backend, const Grid& grid, const CommConfig& comm,
                     Trace* trace)
    : hosts_(job.world()),
      devices_(make_device_world(
          job.world(), backend, comm, [&job](const RankFailure& failure) { job.abort(failure); },
          trace)) {
  World* hosts = &hosts_;
  sum_in_rank_order(*hosts, comm.deterministic);
  World* devices = devices_.gpus ? devices_.gpus.get() : hosts;
  if (comm.check) {
    checked_hosts_ = std::make_unique<CheckedWorld>(*hosts);
    if (devices_.gpus) checked_devices_ = std::make_unique<CheckedWorld>(*devices, hosts);
    devices = checked_devices_ ? checked_devices_.get() : checked_hosts_.get();
    hosts = checked_hosts_.get();
  }
  const bool two_worlds = hosts != devices;
  recorded_hosts_ = std::make_unique<RecordedWorld>(*hosts, job.recorder(), job.splits_);
  job.splits_ += kGroupKinds;
  if (two_worlds) {
    recorded_devices_ = std::make_unique<RecordedWorld>(*devices, job.recorder(), job.splits_);
    job.splits_ += kGroupKinds;
  }
  hosts = recorded_hosts_.get();
  groups_ = make_groups(*hosts, two_worlds ? *recorded_devices_ : *hosts, grid);
  groups_.recorder = &job.recorder();
}

JobGroups::~JobGroups() = default;

}  // namespace kintsugi
