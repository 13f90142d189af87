#include "train/trainer/spike_policy.h"

#include <fmt/format.h>

#include "comm/exchange.h"
#include "core/log.h"

namespace kintsugi {
namespace fs = std::filesystem;

std::string SpikePolicy::trouble() const {
  const SpikeAction action = run_.config.train.spikes.action;
  if (!guard_.divergence().empty()) return guard_.divergence();
  const std::string& spike = guard_.spike();
  if (spike.empty()) return "";
  if (run_.is_first()) run_.log->events().add("spike", run_.state.step, spike);
  if (action == SpikeAction::Warn && run_.is_first())
    log_warning("step {}: {}", run_.state.step, spike);
  return action == SpikeAction::Rewind || action == SpikeAction::Stop ? spike : "";
}

// On rank 0. Of this stage and with the same batches, so that samples are counted alike.
std::string SpikePolicy::rewind_target() const {
  const fs::path folder = run_.directory / "checkpoints";
  for (auto one = run_.checkpoints.ancestors.rbegin(); one != run_.checkpoints.ancestors.rend();
       ++one) {
    const CheckpointPaths at{folder, one->name};
    if (!fs::exists(at.model()) || !what_is_missing(at).empty()) continue;
    try {
      const TrainerState state = saved_state(at.model());
      if (state.skipped == 0 && state.stage == run_.state.stage &&
          state.batches == run_.state.batches &&
          state.step <= run_.state.step - run_.config.train.spikes.rewind_steps)
        return at.model().string();
    } catch (const UserError& error) {
      log_warning("{}; the run does not go back to {}", error.what(), one->name);
    }
  }
  return "";
}

// The newest target that can be loaded, which is then loaded. A damaged one is set aside.
std::optional<RunOpening::Rewound> SpikePolicy::go_back(std::int64_t position) {
  for (;;) {
    std::string target;
    together(run_.host(), [&] {
      if (run_.is_first()) target = rewind_target();
    });
    target = text_of(run_.host(), 0, target);
    if (target.empty()) return std::nullopt;
    try {
      return opening_.go_back_to(target, position);
    } catch (const SharedUserError& error) {
      if (error.failure().kind != FailureKind::DamagedFile) throw;
      opening_.confirm_damage(target, error.failure());
      set_target_aside(target, error.what());
    }
  }
}

void SpikePolicy::set_target_aside(const fs::path& target, const std::string& damage) {
  together(run_.host(), [&] {
    if (!run_.is_first()) return;
    const std::string aside = set_aside({target.parent_path(), target.filename().string()});
    log_warning("{}: {} was renamed to {}, and the run goes back further", damage,
                target.filename().string(), aside);
  });
  if (run_.checkpoints.healthy != target.string()) return;
  together(run_.host(), [&] {
    if (run_.is_first()) run_.checkpoints.healthy = opening_.newest_healthy_checkpoint();
  });
  run_.checkpoints.healthy = text_of(run_.host(), 0, run_.checkpoints.healthy);
}

bool SpikePolicy::rewind(const std::string& why) {
  const SpikeOptions& options = run_.config.train.spikes;
  if (options.action != SpikeAction::Rewind) return false;
  const std::int64_t spike = run_.state.step, number = guard_.spikes().next_rewind(spike);
  if (number > options.max_rewinds) {
    if (run_.is_first())
      log_warning("{} rewinds in a row did not help (train.spikes.max_rewinds)",
                  options.max_rewinds);
    return false;
  }
  const RunEvents::LongWork long_work(run_.events());
  saves_.finish_after_error();  // it reads the state that the rewind replaces
  const std::int64_t position = data_position(run_.state.skipped_samples, run_.state.samples);
  const SpikeHistory::State history = guard_.spikes().state();
  const std::optional<RunOpening::Rewound> rewound = go_back(position);
  if (!rewound) {
    if (run_.is_first())
      log_warning("there is no healthy checkpoint {} or more steps before step {} to go back to",
                  options.rewind_steps, spike);
    return false;
  }
  guard_.spikes().restore({run_.state.spikes.losses, history.rewinds, history.last_step});
  guard_.spikes().note_rewind(spike);
  run_.state.spikes = guard_.spikes().state();
  if (run_.is_first()) run_.log->goodput().rewind(run_.state.step);
  if (!run_.is_first()) return true;
  log_warning(
      "step {}: {}; going back to {} and leaving out samples {} to {} of the data (rewind {} of at "
      "most {})",
      spike, why, rewound->checkpoint.string(), rewound->first, rewound->end - 1, number,
      options.max_rewinds);
  return true;
}

}  // namespace kintsugi
