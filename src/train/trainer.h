#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/file.h"
#include "data/sampling/batch_loader.h"
#include "energy/energy_report.h"
#include "eval/classification_scores.h"
#include "model/metrics.h"
#include "optim/schedule.h"
#include "train/checkpoint/background_save.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/memory_copies.h"
#include "train/config/config.h"
#include "train/engine_options.h"
#include "train/health.h"
#include "train/job_energy.h"
#include "train/memory_check.h"
#include "train/records/run_log.h"
#include "train/reference.h"
#include "train/run_data.h"
#include "train/run_lock.h"
#include "train/run_tasks.h"
#include "train/save_interval.h"
#include "train/spikes.h"
#include "train/startup.h"
#include "train/step_means.h"
#include "train/step_profile.h"
#include "train/stop_requests.h"
#include "train/text_samples.h"

namespace kintsugi {

// Auto: continue from the latest checkpoint in the run directory, if there is one. Never: start a
// new run; UserError if the directory already has one.
enum class ResumeMode { Auto, Never };
enum class RunOutcome { Finished, Stopped };

// The checkpoint to continue from was damaged and is set aside: a new Trainer continues from the
// one before. All ranks throw it together.
class CheckpointSetAside : public SharedFailure {
 public:
  using SharedFailure::SharedFailure;
};

// One training run. Reads batches, steps the engine, validates, writes metrics, saves checkpoints
// and stops on signals.
class Trainer {
 public:
  // Checks the whole input before it allocates memory or writes a file, except for the index of
  // packed data. Every rank of the job
  // constructs one; rank 0 owns the terminal and the files. The groups must outlive the trainer.
  Trainer(Backend& backend, RunConfig config, const Groups& groups, Startup startup = {});
  Trainer(Backend& backend, RunConfig config);  // on one rank

  // Call before run(): records the steps that `profile` asks for. `profile` must outlive the run.
  void profile_with(StepProfile& profile) { profile_ = &profile; }
  StepProfile* profile() const { return profile_; }
  // Call before run(): measures the energy of the run. `energy` must outlive it.
  void meter_with(JobEnergy& energy);
  RunOutcome run(ResumeMode resume);
  // Call instead of run(): logs sizes, layout, memory, steps and the estimated duration. `starts`:
  // run() would be called, so its errors and warnings about the run directory are reported too;
  // nothing is written.
  void preview(bool starts);

  const std::filesystem::path& directory() const { return directory_; }
  const RunConfig& config() const { return config_; }  // completed from the data
  const RunData& data() const { return *data_; }
  Startup& startup() { return startup_; }
  // The lock of the run directory, for the trainer of the next stage.
  std::unique_ptr<RunLock> release_lock() { return std::move(lock_); }
  void keep_lock(std::unique_ptr<RunLock> lock) { lock_ = std::move(lock); }
  // Records in status.json that another rank ended the job. Thread-safe during run(). Returns what
  // RunLog::fail returns.
  std::function<void()> note_failure(const FailedRank& failed);

 private:
  Trainer(Backend& backend, RunConfig config, std::unique_ptr<Groups> own_groups);
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  // What saves cost.
  struct SaveTimes {
    std::int64_t saved = 0;
    double stalled_s = 0;  // all time that the training waited for saves
    double stall_s = 0;    // the same of the last one
  };

  bool is_first() const { return groups_->is_first(); }
  Communicator& host() const { return (*groups_)[GroupKind::World]; }
  // The number of this rank's first sequence in the batch of a step.
  std::int64_t first_sequence(std::int64_t step) const {
    return groups_->coordinates.dp * (batches_.sequences(step) / groups_->grid.dp);
  }
  // Summed over all ranks by one all-reduce on host memory at the end of each step. A step has no
  // other collective on host memory.
  struct StepSums {
    LossSums of_step = {};
    double next_targets = 0;   // Engine::targets_of the batches of the next step
    double stops = 0;          // what asks the ranks to stop: StopRequests::ask
    double outliers = 0;       // number of ranks that skipped this step as an outlier: all or none
    double saved = 0;          // number of ranks whose save in the background has ended
    double save_due = 0;       // 1 from rank 0: save now (train.checkpoint_every: auto)
    EnergyTotals energy = {};  // since the launch
  };
  void sum_over_ranks(std::span<double> values);
  void sum_over_ranks(StepSums& sums);
  // Energy, in trainer_energy.cpp.
  EnergyTotals own_energy() { return energy_ != nullptr ? energy_->own() : EnergyTotals{}; }
  GoodputLog::Beginning beginning() const;
  int nodes() const { return (groups_->ranks() + groups_->node_ranks - 1) / groups_->node_ranks; }
  void sum_energy();  // over all ranks, outside of steps
  void note_energy(const EnergyTotals& now);
  void record_energy(const EnergyTotals& now);  // of the step
  void apply_power_policy();
  std::optional<PowerSettingEffect> setting_effect() const;
  std::string first_note() const;
  void gather_energy();             // of all nodes, for the report; all ranks call it
  void write_energy(bool summary);  // energy.json and emissions.csv; on rank 0
  EnergyReport energy_report() const;
  void add_nodes(EnergyReport& report) const;
  std::vector<std::int64_t> steps_of_stages() const;
  // Loads the batch of `step`, if the run has such a step, and returns its number of targets on
  // this rank. Errors are not thrown here but by that step, so that the current step can still be
  // saved.
  double load_next_batch(std::int64_t step, Trace* trace);
  void refuse_other_data(std::int64_t step) const;
  void close_content_check();
  ProfileFacts profile_facts();
  TokenBatch tokens();  // of batch_
  // The weights of the targets by their labels; empty without objective.class_weights.
  std::span<const float> target_weights(std::span<const std::int32_t> targets);
  // The checkpoint that the run continues from.
  struct Start {
    std::filesystem::path checkpoint;
    bool other_run = false;  // that of run.from
  };
  // Preference pairs (objective dpo), in trainer_preference.cpp.
  bool preference() const { return config_.objective.kind == ObjectiveKind::Dpo; }
  void find_reference_model(const std::optional<Start>& start);
  void read_references();
  // Before the weights are loaded: reads the log-probabilities of the reference model. If some are
  // missing in a run that continues, loads the reference model and computes them.
  void open_reference(const std::optional<Start>& start);
  void complete_reference(Engine& initial);  // computes the missing ones
  void write_reference_record() const;
  void record_rewards(const Rewards& rewards);                        // in record_
  std::span<const TokenSequence> pairs_of(const SampleBatch& batch);  // valid until the next call
  void open_run(ResumeMode resume);
  void remove_created();
  // Fills in what the configuration leaves open with the checkpoint's values.
  void follow_checkpoint(const std::filesystem::path& checkpoint);
  // Nothing for a new run. Rank 0 decides for all ranks.
  std::optional<Start> open_directory(ResumeMode resume);
  // Whether a new stage begins with a checkpoint of this state.
  bool begins_stage(const Start& start, const TrainerState& state) const {
    return start.other_run || state.stage != config_.stage;
  }
  // Checks the file that `damage` names again, on rank 0 and on another node. Throws SharedFailure
  // if one of them finds it good: then a node is at fault, and not the checkpoint.
  void confirm_damage(const std::filesystem::path& checkpoint, const std::string& damage);
  // Falls back from a damaged checkpoint of this run: throws CheckpointSetAside.
  [[noreturn]] void fall_back_from(const std::filesystem::path& checkpoint,
                                   const std::string& damage);
  // Loads the checkpoint, the weights of model.init or random weights. Returns a description of
  // the weights of model.init.
  std::string load_start(const std::optional<Start>& start);
  // The checks and reports of a start that need no weights, for run() and preview(). state_ is that
  // of the checkpoint.
  void check_start(const std::optional<Start>& start, bool begins);
  enum class Content : std::uint8_t { Check, Record };
  void compare_with_record(const std::optional<Start>& start, bool begins, Content what);
  void report_origin(const std::optional<Start>& start, bool begins,
                     const std::string& weights) const;
  void preview_start();  // on rank 0
  // Continues the stage of state_, or begins the next one.
  void enter_stage(const std::optional<Start>& start, bool begins);
  void open_loader();
  void report_start(const Start& start, bool begins) const;
  void warn_of_other_tokenizer(const std::filesystem::path& model) const;
  void check_same_run(const Start& start) const;
  void check_same_order(const Start& start) const;
  void check_finished_stages() const;
  void take_over(const Start& start);
  // Logs every configuration key whose value has changed, and a jump of the learning rate. A run
  // that has a checkpoint keeps its run.from.
  void report_changes(const Start& start);
  void announce() const;
  std::string describe_layout() const;
  void report_snapshot() const;
  // Model FLOPs utilization. Empty once a step was faster than the measured peak.
  std::optional<double> mfu(double tokens_per_s, double flops_per_token) const;
  void check_peak();
  // Records that the step was skipped, and why.
  void note_skipped(const StepResult& result, const StepLimits& limits);
  void train_step();
  void read_first_batch();  // of this process, or after a rewind
  // trainer_health.cpp. All ranks decide alike.
  std::string find_spike(double loss) const;  // describes it; empty: none
  std::string trouble() const;  // why the run cannot go on from the last step; empty: it can
  std::string rewind_target() const;
  // Goes back to an earlier checkpoint and leaves out the data since (train.spikes). False: this
  // is not asked for, did not help, or there is no such checkpoint.
  bool rewind(const std::string& why);
  struct Rewound {
    std::filesystem::path checkpoint;
    std::int64_t first = 0, end = 0;  // positions of the samples that are left out: [first, end)
  };
  std::optional<Rewound> go_back(std::int64_t position);
  Rewound go_back_to(const std::filesystem::path& checkpoint, std::int64_t position);
  void set_target_aside(const std::filesystem::path& target, const std::string& damage);
  // Of the ancestors; empty if there is none. On rank 0.
  std::string newest_healthy_checkpoint() const;
  void find_straggler();
  void check_replicas(bool saves);  // also before each save
  // Sum over all groups since the start. Throws Failure if a call was abandoned, because the step
  // then has no result.
  CommunicationTimes communication_times() const;
  void record_communication(const CommunicationTimes& now);
  void validate();
  struct Score {
    explicit Score(std::size_t labels) : matrix(labels) {}
    double nats = 0;
    double targets = 0;      // Engine::targets_of
    std::int64_t bytes = 0;  // of the targets with a loss; 0: unknown
    Rewards rewards = {};    // sums; with preference pairs
    ConfusionMatrix matrix;  // of a classifier
    void add(const LossSums& sums);
    void add(const Score& other);
    double loss() const { return nats / loss_divisor(targets); }
    std::optional<double> bits_per_byte() const;
  };
  void note_validation_time(double seconds);
  // Signs of life between the ends of two steps, from any thread.
  void note_activity();
  ProgressCall noting_activity(Progress& progress);  // shows it and notes it
  RunEvents* events();                               // nullptr on the other ranks
  StepRecord::Valid valid_record(const std::string& name, const Score& score) const;
  void show_score(const std::string& set, const Score& score) const;
  // Writes the scores by label of a classifier; at the end of the run also to the log. On rank 0.
  void report_labels(const ConfusionMatrix& matrix);
  Score score(const ValidationSet& set, SampleBatch& batch);
  // The tasks of train.eval_tasks, in trainer_tasks.cpp. All ranks decide alike.
  void find_evaluated();
  bool tasks_are_due() const;
  void evaluate_tasks();
  void report_tasks() const;
  // The texts of train.samples, in trainer_samples.cpp. All ranks decide alike.
  bool samples_are_due() const;
  void generate_samples();
  // What fp8 matmuls lose, in trainer_fp8.cpp. All ranks decide alike.
  void check_fp8_device() const;
  bool fp8_statistics_are_due(std::int64_t step) const;
  void record_fp8_statistics();
  // layout.json; all ranks call it.
  void write_layout();
  // Copies in memory, in trainer_memory.cpp.
  void make_memory_copies();
  bool restore_from_memory(const Start& start);  // sets state_
  void open_memory_copies();
  void copy_to_memory();
  void remove_memory_copies();
  // Saves in trainer_save.cpp. open_saves() allocates the memory for saves in the background.
  void open_saves();
  void warn_of_waiting_saves() const;
  bool save_is_due() const;
  void save();
  double save_ended() const;  // for StepSums
  // Takes the result of the save in the background, if there is one; waits for its end.
  void finish_save();
  void finish_save_after_error() noexcept;
  struct SaveResult;
  void note_saved(const SaveResult& result);
  void note_failed_save(const std::string& error, bool last);
  CheckpointOptions checkpoint_options() const;
  void report_saves() const;
  std::string progress_line() const;
  std::vector<Tokenizer::File> checkpoint_texts() const;
  [[noreturn]] void end_diverged(const std::string& why);
  void report(bool last);
  void write_status(const RunState& state, double eta_s);  // on rank 0
  void watch_for_stops();                                  // creates stops_; on rank 0
  void check_time_left();  // warns if the job ends before anything can be trained
  void report_stop(bool stopped);
  double eta_s() const;
  double flops_of_later_stages() const;  // slow: it counts the parameters of each of them
  bool due(std::int64_t every) const { return every > 0 && state_.step % every == 0; }
  // Of the stage.
  bool finished() const { return state_.step >= schedule_.last_step(); }
  std::int64_t last_step() const { return schedule_.last_step() + config_.steps_after(); }

  Backend& backend_;
  std::unique_ptr<Groups> own_groups_;  // only without given groups
  const Groups* groups_;
  RunConfig config_;
  std::filesystem::path directory_;
  std::unique_ptr<RunData> data_;
  std::unique_ptr<ContentCheck> content_check_;   // on rank 0, during run()
  std::vector<Tokenizer::File> tokenizer_files_;  // copied into each checkpoint; on rank 0
  std::unique_ptr<RunTasks> tasks_;               // of train.eval_tasks; on rank 0
  std::optional<SamplePrompts> samples_;          // of train.samples
  std::set<std::int64_t> evaluated_;  // later steps whose tasks an earlier process has evaluated
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunLock> lock_;            // one job per run directory; on rank 0
  std::unique_ptr<RunLog> log_;              // on rank 0
  std::atomic<RunLog*> open_log_ = nullptr;  // log_.get() once it is open
  bool new_checkpoints_ = false;  // their folder was created; removed if the start is refused
  Schedule schedule_;
  BatchSchedule batches_;  // of the steps of this process
  LossScaler scaler_;
  RunHealth health_;
  OutlierHistory outliers_;
  SpikeHistory spikes_;
  std::string spike_;       // in the last step; empty: none
  std::string divergence_;  // why the run diverged in the last step; empty: it did not
  TrainerState state_;
  TrainingFlops flops_;
  double later_flops_ = 0;  // flops_of_later_stages(), for the ETA
  Backend::Peak peak_;
  bool peak_is_known_ = true;
  bool warned_of_outliers_ = false;  // of the activation, in fp8
  StepRecord record_;
  StepMeans means_;  // since the last log line
  std::optional<double> last_valid_loss_;
  std::string last_checkpoint_, last_healthy_;
  bool started_elsewhere_ = false;   // last_healthy_ is that of another run (run.from)
  std::vector<Ancestor> ancestors_;  // of the next checkpoint; on rank 0
  SnapshotPlan snapshot_plan_;
  std::unique_ptr<BackgroundSave> saver_;      // with train.async_save
  std::optional<SaveInterval> save_interval_;  // with train.checkpoint_every: auto; on rank 0
  bool save_due_ = false;                      // by save_interval_; the same on all ranks
  bool save_healthy_ = false;      // whether the run was healthy when the save under way began
  std::int64_t save_step_ = 0;     // of the last save that began
  std::int64_t failed_saves_ = 0;  // consecutive ones
  SaveTimes save_times_;
  std::unique_ptr<MemoryCopies> copies_;  // with train.memory_copy_every
  bool from_memory_ = false;              // the run continues from a copy in memory
  bool unsaved_ = false;  // state_ is of a copy in memory or a rewind, and no step followed
  bool copied_ = false;
  Clock::time_point loop_begin_;
  BatchesDone before_;  // steps and samples before this process
  Startup startup_;
  StepProfile* profile_ = nullptr;  // optional
  JobEnergy* energy_ = nullptr;     // optional
  EnergyTotals energy_now_;         // of all ranks, when it was last summed
  EnergyTotals energy_recorded_;    // the same at the last record of a step
  // Whether a level was metered in the last seconds.
  struct Metered {
    Clock::time_point since = {};
    double covered_s = 0;  // then
    bool now = true;
  };
  ByLevel<Metered> metered_;
  Clock::time_point energy_time_;      // of energy_now_
  std::vector<NodeReading> readings_;  // of all nodes, for the report; on rank 0
  CommunicationTimes communication_;   // up to the last step
  Clock::time_point last_report_;
  double step_seconds_ = 0;  // time in steps only, for the ETA
  double compute_s_ = 0;     // of this rank since the last find_straggler()
  std::int64_t compute_steps_ = 0;
  bool startup_reported_ = false;
  struct Reference {
    std::string model, weights;  // the directory and weights_fingerprint() of the reference model
    ReferenceTable table;
    struct Missing {
      const TokenShard* shard;
      ReferencePaths paths;
    };
    std::vector<Missing> missing;
  };
  Reference reference_;               // with preference pairs
  std::vector<TokenSequence> pairs_;  // of the batch that was used last
  std::unique_ptr<BatchLoader> loader_;
  std::vector<float> target_weights_;   // of a batch
  const SampleBatch* batch_ = nullptr;  // the next step's batch, once it is loaded
  double targets_ = 0;                  // Engine::targets_of batch_, over all ranks
  StopRequests stops_;                  // decided alike on all ranks
};

}  // namespace kintsugi
