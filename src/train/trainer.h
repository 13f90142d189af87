#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/file.h"
#include "data/sampling/batch_loader.h"
#include "model/metrics.h"
#include "optim/schedule.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/config.h"
#include "train/engine_options.h"
#include "train/health.h"
#include "train/run_data.h"
#include "train/run_log.h"
#include "train/startup.h"
#include "train/step_means.h"
#include "train/step_trace.h"

namespace kintsugi {

enum class ResumeMode {
  Auto,
  Never
};  // continue the run directory's latest checkpoint, or insist on a new run
enum class RunOutcome { Finished, Stopped };

// One run from its configuration to its end. Reads batches, steps the engine, validates, writes
// metrics, saves, obeys signals.
class Trainer {
 public:
  // Everything about the input is checked here, before memory is taken and before anything is
  // written. Every rank of the job makes one; rank 0 owns the terminal and the files.
  // The groups must outlive it.
  Trainer(Backend& backend, RunConfig config, const Groups& groups, Startup startup = {});
  Trainer(Backend& backend, RunConfig config);  // alone

  // Before run(): lets this trace some of the steps. It outlives the run.
  void trace_with(StepTrace& trace) { step_trace_ = &trace; }
  RunOutcome run(ResumeMode resume);
  // Instead: logs sizes, layout, memory, steps and how long the run may take.
  void preview();

  const std::filesystem::path& directory() const { return directory_; }
  const RunConfig& config() const { return config_; }  // completed by what the data says
  const RunData& data() const { return *data_; }
  Startup& startup() { return startup_; }
  // Another rank ended the job: the status says so. From any thread, while run() runs.
  void note_failure(const std::string& message);

 private:
  Trainer(Backend& backend, RunConfig config, std::unique_ptr<Groups> alone);
  using Clock = std::chrono::steady_clock;

  bool is_first() const { return groups_->is_first(); }
  Communicator& host() const { return (*groups_)[GroupKind::World]; }
  // Of a data rank, and of the ranks that share a model with it.
  std::int64_t sequences_per_rank() const { return config_.batch.global / groups_->grid.dp; }
  std::int64_t first_sequence() const { return groups_->place.dp * sequences_per_rank(); }
  // What the ranks tell each other in a step: its only collective on host memory, made when its
  // work is done. Each is a sum over all ranks.
  struct StepSums {
    double loss = 0;          // of this step
    double next_targets = 0;  // tokens with a loss in the next step's batches
    double stops = 0;         // ranks that were asked to stop
  };
  void sum_over_ranks(std::span<double> values);
  void sum_over_ranks(StepSums& sums);
  // Takes the batch of that step, if the run has it, and returns its targets on this rank. What is
  // wrong with it is thrown by the step itself: the one before can still be saved.
  double look_ahead(std::int64_t step, Trace* trace);
  TokenBatch tokens() const;  // of the batch that was taken
  void open_run(ResumeMode resume);
  // What the checkpoint was trained with, where the configuration leaves it open.
  void follow_checkpoint(const std::filesystem::path& checkpoint);
  // The checkpoint to go on from, if there is one; what rank 0 sees decides.
  std::optional<std::filesystem::path> open_directory(ResumeMode resume);
  void check_same_run() const;
  void take_over(const std::filesystem::path& checkpoint);
  // Every key of the configuration that is not what it was, and a jump of the learning rate.
  void report_changes(const std::filesystem::path& checkpoint) const;
  void announce() const;
  std::string describe_layout() const;
  // Shares of the peak at some rate, causally and in full. Empty once a step was faster than the
  // peak that was measured.
  std::optional<double> mfu(double tokens_per_s, double flops_per_token) const;
  void check_peak();
  void train_step();
  // Of all groups until now. Failure where a call was given up: then a step has no result.
  CommunicationTimes communication_times() const;
  void record_communication(const CommunicationTimes& now);
  void validate();
  struct Score {
    double nats = 0;
    std::int64_t tokens = 0, bytes = 0;  // of the targets that count
    double loss() const;
    std::optional<double> bits_per_byte() const;
  };
  Score score(const ValidationSet& set, SampleBatch& batch);
  void save();
  std::string progress_line() const;
  std::vector<Tokenizer::File> checkpoint_texts() const;
  [[noreturn]] void end_diverged(const std::string& why) const;
  void report(bool last);
  double eta_s() const;
  bool due(std::int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool finished() const { return state_.step >= schedule_.total_steps; }

  Backend& backend_;
  std::unique_ptr<Groups> alone_;
  const Groups* groups_;
  RunConfig config_;
  std::filesystem::path directory_;
  std::unique_ptr<RunData> data_;
  std::vector<Tokenizer::File> tokenizer_files_;  // of each checkpoint; on rank 0
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunLog> log_;              // on rank 0
  std::atomic<RunLog*> open_log_ = nullptr;  // the same, once it is there
  std::unique_ptr<DirectoryLock> lock_;      // one process per run directory
  Schedule schedule_;
  LossScaler scaler_;
  RunHealth health_;
  std::string divergence_;  // why the last step was the last; empty: it was not
  TrainerState state_;
  TrainingFlops flops_;
  Backend::Peak peak_;
  bool peak_is_known_ = true;
  StepRecord record_;
  StepMeans means_;  // since the last line
  std::optional<double> last_valid_loss_;
  std::string last_checkpoint_, last_healthy_;
  std::vector<Ancestor> ancestors_;  // of the next checkpoint; on rank 0
  std::int64_t first_step_ = 0;      // of this process
  Startup startup_;
  StepTrace* step_trace_ = nullptr;   // if any
  CommunicationTimes communication_;  // until the last step
  Clock::time_point last_report_;
  double step_seconds_ = 0;  // in steps alone, for the time left
  std::unique_ptr<BatchLoader> loader_;
  const SampleBatch* batch_ = nullptr;  // the next step's, once it is there
  double targets_ = 0;                  // with a loss in it, of all ranks
  bool stop_ = false;                   // some rank was asked to, and all know
};

}  // namespace kintsugi
