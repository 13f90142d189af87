#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "train/trainer/batch_feed.h"
#include "train/trainer/preference_reference.h"
#include "train/trainer/run_context.h"
#include "train/trainer/save_policy.h"
#include "train/trainer/step_guard.h"

namespace kintsugi {

enum class ResumeMode;

// Starts or resumes a run: opens its directory and loads the latest checkpoint, the weights of
// model.init or random weights. Also goes back to a checkpoint within the process.
class RunOpening {
 public:
  struct Parts {
    StepGuard& guard;
    BatchFeed& feed;
    MemoryCopyPolicy& copies;
    PreferenceReference& reference;
  };
  // Checks everything that can be checked before memory is allocated or a file is written.
  RunOpening(RunContext& run, const Parts& parts);

  struct Opened {
    std::optional<RunStart> start = {};
    bool begins = true;        // a run or a stage, with it
    std::string weights = {};  // describes those of model.init
  };
  // Sets engine, state and log of the run. Rank 0 decides for all ranks.
  Opened open(ResumeMode resume);
  // The same, but it reads only what is not in the weights and changes nothing. On rank 0.
  Opened preview();
  void report_origin(const Opened& opened) const;

  struct Rewound {
    std::filesystem::path checkpoint;
    std::int64_t first = 0, end = 0;  // positions of the samples that are left out: [first, end)
  };
  // Loads the checkpoint and leaves out its next samples up to `position`.
  Rewound go_back_to(const std::filesystem::path& checkpoint, std::int64_t position);
  // Checks the damaged file again, on rank 0 and on another node. Throws SharedFailure (Misread) if
  // one of them finds it good: then a node is at fault, and not the checkpoint.
  void confirm_damage(const std::filesystem::path& checkpoint, const RankFailure& damage);
  // Of the ancestors; empty if there is none. On rank 0.
  std::string newest_healthy_checkpoint() const;

 private:
  bool is_first() const { return run_.is_first(); }
  Communicator& host() const { return run_.host(); }
  void sum_over_ranks(std::span<double> values) const { run_.sum_over_ranks(values); }
  std::optional<RunStart> open_directory(ResumeMode resume);  // nothing for a new run
  void open_files(const Opened& opened);
  void remove_created();
  // Fills in what the configuration leaves open with the checkpoint's values.
  void follow_checkpoint(const std::filesystem::path& checkpoint);
  // Falls back from a damaged checkpoint of this run: throws CheckpointSetAside.
  [[noreturn]] void fall_back_from(const std::filesystem::path& checkpoint,
                                   const RankFailure& damage);
  // Returns a description of the weights of model.init.
  std::string load_start(const std::optional<RunStart>& start);
  // Continues the stage of run.state, or begins the next one.
  void enter_stage(const std::optional<RunStart>& start, bool begins);
  void take_over(const RunStart& start);
  void report_start(const RunStart& start, bool begins) const;
  void warn_of_other_tokenizer(const std::filesystem::path& model) const;

  RunContext& run_;
  Parts parts_;
  const Groups* groups_;
  bool new_checkpoints_ = false;  // their folder was created; removed if the start is refused
};

}  // namespace kintsugi
