#include "cli/train/preflight.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <thread>

#include "cli/train/dry_run.h"
#include "comm/launch_environment.h"
#include "core/error.h"
#include "core/log.h"
#include "plan/costs/footprint.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostWarnings = 10;

DoctorOptions preflight_options(const RunConfig& config, Job& job, Backend& backend) {
  const PreflightConfig& limits = config.preflight;
  DoctorOptions options = options_of_rank(job, backend, threads_for(config.threads, job.world()));
  const bool gpu = !options.gpu.empty();
  options.share_gpu = config.comm.share_gpu;
  options.limits.slow = limits.slow;
  options.limits.failed = std::min(limits.failed, limits.slow);
  options.limit_s = limits.timeout_s;
  // CPU ranks are not timed: they may share cores and memory with other programs.
  options.device = {.precision = config.train.precision,
                    .size = gpu ? 2048 : 128,
                    .depth = gpu ? 2048 : 512,
                    .repetitions = gpu ? 3 : 0,
                    .memory_bytes = gpu ? 64 << 20 : 1 << 20};
  options.links = {.inside_nodes = false,
                   .between_nodes = gpu && limits.links,
                   .bytes = 16 << 20,
                   .name = "preflight"};
  options.all_reduce = false;
  options.hosts = false;
  options.directory = config.run.dir;
  options.file_bytes = 64 << 10;
  if (job.world().rank() == 0) expect_checkpoints(config, options);
  return options;
}

void log_warnings(const Findings& findings) {
  std::size_t warnings = 0;
  for (const Finding& finding : findings)
    if (finding.severity == Severity::Warning && ++warnings <= kMostWarnings)
      log_warning("preflight: {}", finding.text);
  if (warnings > kMostWarnings)
    log_warning("preflight: {} more warnings; kintsugi doctor lists them",
                warnings - kMostWarnings);
}

void exclude_nodes(const RunConfig& config, const Diagnosis& diagnosis) {
  if (config.preflight.exclude_days <= 0 || diagnosis.bad_nodes().empty()) return;
  const NodeLedger ledger(node_ledger_path(config.run.node_ledger.value_or(""), config.run.dir));
  try {
    exclude_bad_nodes(diagnosis, ledger, std::time(nullptr), config.preflight.exclude_days);
  } catch (const std::exception& error) {
    log_warning("{}", error.what());  // the error that ends the run follows
  }
}

}  // namespace

DoctorOptions options_of_rank(Job& job, Backend& backend, std::int64_t threads) {
  const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  DoctorOptions options;
  options.node = node_name();
  options.threads = static_cast<int>(threads > 0 ? threads : cores);
  options.gpu = backend.device().pci;
  options.on_hang = [&job](const RankFailure& failure) {
    job.abort(failure);  // returns if this is the only rank
    log_message(LogLevel::Error, failure.text);
    std::fflush(nullptr);
    ::_exit(exit_code::kFailure);
  };
  return options;
}

void expect_checkpoints(const RunConfig& config, DoctorOptions& options) {
  if (!config.train.save) return;
  const double one = checkpoint_bytes(plan_job(config));
  const bool all = config.train.keep_checkpoints == 0;
  options.needed_bytes = one;
  // While one more is written, the old ones are kept.
  options.wanted_bytes = all ? one : one * static_cast<double>(config.train.keep_checkpoints + 1);
}

void run_preflight(const RunConfig& config, Job& job, Backend& backend, World& devices) {
  DoctorOptions options;
  job.together([&] { options = preflight_options(config, job, backend); });
  const Diagnosis diagnosis = diagnose(job.world(), devices, backend, options);
  if (job.world().rank() == 0) {
    log_warnings(diagnosis.findings);
    exclude_nodes(config, diagnosis);
  }
  const auto group = job.world().split("preflight", 0, job.world().rank());
  refuse_errors(*group, diagnosis, "preflight: ");
}

}  // namespace kintsugi
