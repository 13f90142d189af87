#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kintsugi {

// A batch that grows by `increment` sequences at equal numbers of samples, from `start` to the full
// batch at sample `samples`.
struct BatchRamp {
  std::int64_t start = 0;  // 0: no ramp
  std::int64_t increment = 0;
  std::int64_t samples = 0;
  bool on() const { return start > 0; }
  bool operator==(const BatchRamp&) const = default;
};
constexpr std::int64_t kMaxRampIncrements = 10'000;

// What a run has trained so far.
struct BatchesDone {
  std::int64_t steps = 0, samples = 0;
  bool operator==(const BatchesDone&) const = default;
};

// A batch that a resumed run has changed.
struct PastBatch {
  std::int64_t full = 0;
  BatchRamp ramp = {};
  BatchesDone until = {};  // steps and samples before the change, counted from the stage's start
  bool operator==(const PastBatch&) const = default;
};

// Samples that a rewind left out: from trained sample `at` of the stage on, the position in the
// data order is `count` further on.
struct SkippedSamples {
  std::int64_t at = 0, count = 0;
  bool operator==(const SkippedSamples&) const = default;
};
// The position in the data order of a trained sample, or of the next one to be trained.
std::int64_t data_position(const std::vector<SkippedSamples>& skipped, std::int64_t sample);

// The samples of each step. Steps count from 1, samples from 0, without a gap. The samples before a
// step decide its number of sequences. With k = (full - start) / increment, a step after c samples
// has min(start + floor(c * k / samples) * increment, full) sequences, in exact arithmetic.
class BatchSchedule {
 public:
  // Of the steps that follow `done`. The ramp must be valid: see check_run_config.
  explicit BatchSchedule(std::int64_t full, const BatchRamp& ramp = {}, BatchesDone done = {});
  // Of all steps: those of each past batch, oldest first, and then those of this one.
  BatchSchedule(const std::vector<PastBatch>& past, std::int64_t full, const BatchRamp& ramp);

  // For steps after `done`. Sums that exceed 64 bits are given as the largest number.
  std::int64_t sequences(std::int64_t step) const { return at(step).sequences; }
  std::int64_t first_sample(std::int64_t step) const;  // also: the samples before the step
  // The last step of a run of at least this many samples.
  std::int64_t steps_for(std::int64_t samples) const;
  std::int64_t smallest() const { return equal_.front().sequences; }
  std::int64_t full() const { return full_; }

 private:
  // Steps with the same number of sequences, up to those of the next entry.
  struct Equal {
    std::int64_t first_step, first_sample, sequences;
  };
  const Equal& at(std::int64_t step) const;
  // Adds the steps that follow `done`, up to `last`. Without `last`, all of them.
  void add(std::int64_t full, const BatchRamp& ramp, BatchesDone done,
           std::optional<std::int64_t> last = {});

  std::int64_t full_;
  std::vector<Equal> equal_;
};

}  // namespace kintsugi
