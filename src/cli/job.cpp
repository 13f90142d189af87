#include "cli/job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "cli/backends.h"
#include "comm/checked_communicator.h"
#include "comm/exchange.h"
#include "comm/mpi/mpi_world.h"
#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

Lifeline::Callbacks callbacks(std::function<void(const std::string&)> on_failure) {
  return {.on_message = [](int rank,
                           const std::string& text) { log_warning("rank {}: {}", rank, text); },
          .on_failure =
              [on_failure](const RankFailure& failure) {
                log_message(LogLevel::Error, failure.text);
                on_failure(failure.text);
              },
          .end =
              [](const RankFailure& failure) {
                std::fflush(nullptr);
                ::_exit(failure.exit_code);  // this rank may wait for a message that never arrives
              }};
}

}  // namespace

Job::Job(Trace* trace)
    : world_(make_world(trace)), control_(world_->split("control", 0, world_->rank())) {
  if (world_->size() == 1) return;
  disable_live_line();
  lifeline_ = std::make_unique<Lifeline>(*world_, callbacks([this](const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (on_failure_) on_failure_(text);
  }));
  if (world_->rank() == 0) return;
  redirect_log([this](LogLevel level, std::string_view message) {
    if (level == LogLevel::Warning && lifeline_) lifeline_->say(std::string(message));
  });
}

Job::~Job() {
  // From here on only rank 0 writes messages.
  if (world_->size() > 1 && world_->rank() > 0) redirect_log([](LogLevel, std::string_view) {});
}

void Job::on_failure(std::function<void(const std::string&)> listener) {
  const std::lock_guard lock(mutex_);
  on_failure_ = std::move(listener);
}

void Job::together(const std::function<void()>& work) { kintsugi::together(*control_, work); }

void Job::check_agreement(const Facts& facts) { kintsugi::check_agreement(*control_, facts); }

std::string Job::broadcast_text(const std::string& text) { return text_of(*control_, 0, text); }

void Job::abort(const std::string& text, int exit_code) {
  if (!lifeline_) return;
  lifeline_->fail(text, exit_code);
  std::fflush(nullptr);
  ::_exit(exit_code);  // no destructors: pending collectives still use this rank's memory
}

void Job::report_shared_error(const std::string& text) {
  if (!lifeline_) return;
  // Before any rank exits: a launcher ends the job at the first non-zero exit code.
  if (world_->rank() == 0) log_message(LogLevel::Error, text);
  lifeline_->goodbye();
  redirect_log([](LogLevel, std::string_view) {});
}

void Job::run(const std::function<void()>& work) {
  try {
    work();
    if (lifeline_) lifeline_->goodbye();
  } catch (const SharedUserError& error) {
    report_shared_error(error.what());
    throw;
  } catch (const SharedFailure& error) {
    report_shared_error(error.what());
    throw;
  } catch (const UserError& error) {
    abort(error.what(), 2);
    throw;
  } catch (const std::exception& error) {
    abort(error.what(), 1);
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
          job.world(), backend, comm, [&job](const std::string& text) { job.abort(text); },
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
  groups_ = make_groups(*hosts, *devices, grid);
}

JobGroups::~JobGroups() = default;

}  // namespace kintsugi
