#include "data/sampling/batch_schedule.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace kintsugi {
namespace {

__extension__ using Int128 = __int128;

std::int64_t limited(Int128 value) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return value > kMost ? kMost : static_cast<std::int64_t>(value);
}

Int128 divided_up(Int128 a, Int128 b) { return (a + b - 1) / b; }

}  // namespace

std::int64_t data_position(const std::vector<SkippedSamples>& skipped, std::int64_t sample) {
  Int128 position = sample;
  for (const SkippedSamples& one : skipped)
    if (one.at <= sample) position += one.count;
  return limited(position);
}

BatchSchedule::BatchSchedule(std::int64_t full, const BatchRamp& ramp, BatchesDone done)
    : full_(full) {
  add(full, ramp, done);
}

BatchSchedule::BatchSchedule(const std::vector<PastBatch>& past, std::int64_t full,
                             const BatchRamp& ramp)
    : full_(full) {
  BatchesDone done;
  for (const PastBatch& one : past) {
    add(one.full, one.ramp, done, one.until.steps);
    done = one.until;
  }
  add(full, ramp, done);
}

void BatchSchedule::add(std::int64_t full, const BatchRamp& ramp, BatchesDone done,
                        std::optional<std::int64_t> last) {
  const std::int64_t wide = ramp.on() ? full - ramp.start : 0;
  KINTSUGI_CHECK(full > 0 && wide >= 0 && (wide == 0 || (ramp.increment > 0 && ramp.samples > 0)),
                 "a batch of {} with a ramp from {} by {} over {} samples", full, ramp.start,
                 ramp.increment, ramp.samples);
  KINTSUGI_CHECK(done.steps >= 0 && done.samples >= 0, "{} samples in {} steps", done.samples,
                 done.steps);
  const std::int64_t increments = wide == 0 ? 0 : wide / ramp.increment;
  Int128 step = done.steps + Int128{1}, sample = done.samples;
  while (!last || step <= *last) {
    const bool grows = increments > 0 && sample < ramp.samples;
    const Int128 level = grows ? sample * increments / ramp.samples : increments;
    const Int128 sequences = grows ? ramp.start + level * ramp.increment : full;
    equal_.push_back({limited(step), limited(sample), limited(sequences)});
    if (!grows) return;
    const Int128 end = divided_up((level + 1) * ramp.samples, increments);
    const Int128 steps = divided_up(end - sample, sequences);
    step += steps;
    sample += steps * sequences;
  }
}

const BatchSchedule::Equal& BatchSchedule::at(std::int64_t step) const {
  KINTSUGI_CHECK(step >= equal_.front().first_step, "step {} is before step {}", step,
                 equal_.front().first_step);
  return *(std::upper_bound(
               equal_.begin(), equal_.end(), step,
               [](std::int64_t value, const Equal& one) { return value < one.first_step; }) -
           1);
}

std::int64_t BatchSchedule::first_sample(std::int64_t step) const {
  const Equal& steps = at(step);
  return limited(steps.first_sample + Int128{step - steps.first_step} * steps.sequences);
}

std::int64_t BatchSchedule::steps_for(std::int64_t samples) const {
  const auto after = std::upper_bound(
      equal_.begin() + 1, equal_.end(), samples,
      [](std::int64_t value, const Equal& one) { return value <= one.first_sample; });
  const Equal& last = *(after - 1);
  const Int128 more = std::max<Int128>(Int128{samples} - last.first_sample, 0);
  return limited(last.first_step - 1 + divided_up(more, last.sequences));
}

}  // namespace kintsugi
