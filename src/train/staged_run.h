#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "train/stop_requests.h"
#include "train/trainer.h"

namespace kintsugi {

// Returns the number of the stage that a run trains next, from its latest checkpoint. One rank
// calls it for all. Changes nothing.
std::int64_t stage_to_train(const RunConfig& run);

// A run of one or more stages. Each is trained by a Trainer of its own, which starts from the
// checkpoint of the stage before, also if that stage was trained by this process.
class StagedRun {
 public:
  // Returns the groups for the layout of a stage. They are used until the next call.
  using GroupsOf = std::function<const Groups&(const RunConfig& stage)>;
  using UseTrainer = std::function<void(Trainer&)>;

  // Checks the data, the layout and the memory of the stages from `first` on, without writing
  // files other than the indexes of packed data, and warns of jumps of the learning rate between
  // them. `checked` is called with the trainer of each of them, for example to preview it. All
  // ranks construct one.
  StagedRun(Backend& backend, const RunConfig& run, std::int64_t first, GroupsOf groups,
            Startup startup, const UseTrainer& checked = {});

  // Trains. `watch` is called with the trainer of each stage before it runs, and with nullptr
  // before it is destroyed.
  using WatchTrainer = std::function<void(Trainer*)>;
  RunOutcome run(ResumeMode resume, const WatchTrainer& watch = {});

  Trainer& trainer() { return *trainer_; }  // of the current stage

 private:
  // Replaces the trainer of stage `number` after it has set a damaged checkpoint aside. Returns the
  // number of the stage that the run continues with.
  std::int64_t restart(std::int64_t number, const CheckpointSetAside& reason);
  void next_trainer(std::int64_t number, std::unique_ptr<RunLock> lock, const Startup& startup);
  void check_later_stage(std::int64_t number, const Groups& groups, const UseTrainer& checked);

  Backend& backend_;
  RunConfig run_;
  std::int64_t first_;
  GroupsOf groups_;
  std::optional<Trainer> trainer_;
};

}  // namespace kintsugi
