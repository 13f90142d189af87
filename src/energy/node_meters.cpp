#include "energy/node_meters.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr double kLongestCheck_s =
    3;  // power readings further apart say little about the time between
constexpr auto kPatience = std::chrono::seconds(2);  // with a meter that does not answer

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

NodeMeters::NodeMeters(FoundMeters found, ByLevel<std::vector<std::size_t>> used) {
  std::map<std::size_t, std::size_t> kept;  // old and new index
  for (const EnergyLevel level : kEnergyLevels)
    for (const std::size_t index : used[level]) {
      if (!kept.contains(index)) {
        kept[index] = meters_.size();
        const MeterIdentity& identity = found.meters.at(index)->identity();
        meters_.push_back({.meter = nullptr, .total = MeterTotal(identity)});
        meters_.back().meter = std::move(found.meters[index]);
      }
      used_[level].push_back(kept[index]);
    }
}

// The counter's joules since the last reading, and those of the mean power in that time.
void NodeMeters::check_by_power(One& one, const MeterReading& reading, double now_s,
                                double joules) {
  const double seconds = now_s - one.last_s;
  if (!one.read || !one.last.watts || !reading.watts || joules <= 0 || seconds > kLongestCheck_s)
    return;
  one.power_j += seconds * (*one.last.watts + *reading.watts) / 2;
  one.counter_j += joules;
}

void NodeMeters::sample(double now_s) {
  for (One& one : meters_) try {
      const MeterReading reading = one.meter->read();
      const double before = one.total.joules();
      one.total.add(reading, now_s);
      if (one.meter->identity().kind == MeterKind::Counter)
        check_by_power(one, reading, now_s, one.total.joules() - before);
      one.last = reading;
      one.last_s = now_s;
      one.read = true;
    } catch (const std::exception& error) {
      one.total.add_failure(error.what(), now_s);
    }
}

ByLevel<LevelAmount> NodeMeters::amounts(double now_s, double longest_s) const {
  ByLevel<LevelAmount> sums;
  for (const EnergyLevel level : kEnergyLevels) {
    const std::vector<std::size_t>& used = used_[level];
    for (const std::size_t index : used) {
      const One& one = meters_[index];
      const double since = one.read ? now_s - one.last_s : 0;
      // A meter that has just been read goes on at its power until the next reading.
      const bool goes_on = one.total.watts() && since > 0 && since <= longest_s;
      sums[level].joules += one.total.joules() + (goes_on ? since * *one.total.watts() : 0);
      sums[level].covered_s +=
          (one.total.covered_s() + (goes_on ? since : 0)) / static_cast<double>(used.size());
    }
  }
  return sums;
}

std::vector<MeterState> NodeMeters::states() const {
  std::vector<MeterState> states;
  for (const One& one : meters_)
    states.push_back({.identity = one.meter->identity(),
                      .joules = one.total.joules(),
                      .covered_s = one.total.covered_s(),
                      .power_j = one.power_j,
                      .counter_j = one.counter_j,
                      .note = one.total.note()});
  return states;
}

// ---- the thread

struct NodeSampler::Shared {
  // Only the thread uses the meters; the copies below are for the others.
  std::unique_ptr<NodeMeters> meters;
  double interval_s = 1;
  ByLevel<bool> metered = {};

  std::mutex mutex = {};  // guards everything below
  std::condition_variable changed = {};
  bool stop = false, ended = false;
  // The amounts at two times after the last sample: those between are on the line through them.
  double sampled_s = 0, until_s = 0;
  ByLevel<LevelAmount> at_sample = {}, at_end = {};
  std::vector<MeterState> states = {};

  void sample() {
    meters->sample(steady_s());
    const double now_s = steady_s(), ahead_s = 2 * interval_s + 0.2;
    const auto at = meters->amounts(now_s, ahead_s),
               end = meters->amounts(now_s + ahead_s / 2, ahead_s);
    std::vector<MeterState> all = meters->states();
    const std::lock_guard lock(mutex);
    sampled_s = now_s;
    until_s = now_s + ahead_s / 2;
    at_sample = at;
    at_end = end;
    states = std::move(all);
  }

  void run() {
    for (;;) {
      sample();
      std::unique_lock lock(mutex);
      changed.wait_for(lock, std::chrono::duration<double>(interval_s), [this] { return stop; });
      if (stop) break;
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

NodeSampler::NodeSampler(std::unique_ptr<NodeMeters> meters, double interval_s)
    : shared_(std::make_shared<Shared>()) {
  for (const EnergyLevel level : kEnergyLevels) shared_->metered[level] = meters->metered(level);
  shared_->meters = std::move(meters);
  shared_->interval_s = interval_s;
  std::thread([shared = shared_] { shared->run(); }).detach();
}

NodeSampler::~NodeSampler() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kPatience, [this] { return shared_->ended; });
}

bool NodeSampler::metered(EnergyLevel level) const { return shared_->metered[level]; }

ByLevel<LevelAmount> NodeSampler::now() {
  const std::lock_guard lock(shared_->mutex);
  const double span_s = shared_->until_s - shared_->sampled_s;
  const double share =
      span_s > 0 ? std::clamp((steady_s() - shared_->sampled_s) / span_s, 0.0, 1.0) : 0.0;
  for (const EnergyLevel level : kEnergyLevels) {
    const LevelAmount &a = shared_->at_sample[level], &b = shared_->at_end[level];
    LevelAmount& reported = reported_[level];
    reported.joules = std::max(reported.joules, a.joules + share * (b.joules - a.joules));
    reported.covered_s =
        std::max(reported.covered_s, a.covered_s + share * (b.covered_s - a.covered_s));
  }
  return reported_;
}

std::vector<MeterState> NodeSampler::states() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->states;
}

}  // namespace kintsugi
