#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "support/captured_log.h"
#include "support/small_run.h"
#include "support/thread_world.h"
#include "train/engine_options.h"
#include "train/memory_check.h"
#include "train/trainer.h"

namespace kintsugi {

// Trains on ranks that are threads of this process, each with a Trainer. `before` is called with
// each of them before it runs. All ranks must end alike.
using BeforeRun = std::function<void(Trainer&, int rank)>;
inline RunOutcome train_on_ranks(int ranks, const std::string& yaml,
                                 const std::vector<std::string>& overrides = {},
                                 const BeforeRun& before = {}) {
  std::vector<RunOutcome> outcomes(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](World& world) {
    const RunConfig config = parse_run_config(yaml, "test.yaml", overrides);
    const auto backend = make_cpu_backend(1);
    const Groups groups =
        make_groups(world, grid_of(layout_on(config, world.size()), config.model));
    Trainer trainer(*backend, config, groups);
    if (before) before(trainer, world.rank());
    outcomes[static_cast<std::size_t>(world.rank())] = trainer.run(ResumeMode::Auto);
  });
  for (const RunOutcome outcome : outcomes) EXPECT_EQ(outcome, outcomes.front());
  return outcomes.front();
}

}  // namespace kintsugi
