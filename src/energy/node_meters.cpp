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

// Power readings further apart say little about the time between.
constexpr double kLongestCheck_s = 3;
constexpr double kFirstWait_s = 0.05;
// Between readings at ends of phases. Many counters move no more often.
constexpr double kLeastApart_s = 0.1;
constexpr std::size_t kMostUnseen = 10'000;          // a phase of an hour and more
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

// Compares the counter's joules with the integral of power. A counter may be read more often than
// it moves, so the power adds up until it does.
void NodeMeters::check_by_power(One& one, const MeterReading& reading, double now_s,
                                double joules) {
  if (one.last_w && reading.watts)
    one.open_j += (now_s - one.last_s) * (*one.last_w + *reading.watts) / 2;
  else
    one.unknown = true;
  one.last_w = reading.watts;
  one.last_s = now_s;
  if (joules <= 0 && one.moved_s) return;
  if (!one.unknown && one.moved_s && now_s - *one.moved_s <= kLongestCheck_s) {
    one.power_j += one.open_j;
    one.counter_j += joules;
  }
  one.moved_s = now_s;
  one.open_j = 0;
  one.unknown = !reading.watts;
}

void NodeMeters::sample(const std::function<double()>& now_s) {
  for (One& one : meters_) try {
      const MeterReading reading = one.meter->read();
      const double at_s = now_s(), before = one.total.joules();
      one.total.add(reading, at_s);
      if (one.meter->identity().kind == MeterKind::Counter)
        check_by_power(one, reading, at_s, one.total.joules() - before);
    } catch (const std::exception& error) {
      one.total.add_failure(error.what(), now_s());
    }
}

ByLevel<LevelAmount> NodeMeters::amounts(double now_s, double longest_s) const {
  ByLevel<LevelAmount> sums;
  for (const EnergyLevel level : kEnergyLevels) {
    const std::vector<std::size_t>& used = used_[level];
    for (const std::size_t index : used) {
      const One& one = meters_[index];
      const double update_s = one.meter->identity().update_s;
      const double since = now_s - one.total.fresh_s();
      // A meter that has just been read goes on at its power until the next fresh reading.
      const bool goes_on =
          one.total.watts() && since > 0 && since <= std::max(longest_s, 2 * update_s);
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

std::vector<std::unique_ptr<NodeMeters>> meters_by_source(
    FoundMeters found, const ByLevel<std::vector<std::size_t>>& used) {
  struct Part {
    FoundMeters found = {};
    ByLevel<std::vector<std::size_t>> used = {};
  };
  std::map<std::string, Part> parts;
  std::vector<std::size_t> moved(found.meters.size());  // the index in its part
  std::vector<Part*> part_of(found.meters.size());
  for (const EnergyLevel level : kEnergyLevels)
    for (const std::size_t index : used[level]) {
      Part*& part = part_of.at(index);
      if (part == nullptr) {
        part = &parts[found.meters[index]->identity().source];
        moved[index] = part->found.meters.size();
        part->found.meters.push_back(std::move(found.meters[index]));
      }
      part->used[level].push_back(moved[index]);
    }
  std::vector<std::unique_ptr<NodeMeters>> all;
  for (auto& [source, part] : parts)
    all.push_back(std::make_unique<NodeMeters>(std::move(part.found), std::move(part.used)));
  return all;
}

// ---- the threads

// One source. Only its thread uses the meters; the copies below are for the others.
struct NodeSampler::Source {
  std::unique_ptr<NodeMeters> meters;
  double interval_s = 1;
  ByLevel<bool> metered = {};

  std::mutex mutex = {};  // guards everything below
  std::condition_variable changed = {};
  bool stop = false, ended = false, soon = false;
  // The amounts at two times after the last sample: those between are on the line through them.
  double sampled_s = 0, until_s = 0;
  ByLevel<LevelAmount> at_sample = {}, at_end = {};
  std::vector<ByLevel<LevelSample>> unseen = {};  // by look()
  std::vector<MeterState> states = {};

  void sample() {
    meters->sample(steady_s);
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
    if (unseen.size() == kMostUnseen) unseen.pop_back();
    unseen.push_back(last());
  }

  // A counter shows joules and power from its second reading on, so the first ones come quickly.
  void run() {
    for (double wait_s = kFirstWait_s;; wait_s = std::min(2 * wait_s, interval_s)) {
      sample();
      std::unique_lock lock(mutex);
      changed.wait_for(lock, std::chrono::duration<double>(wait_s),
                       [this] { return stop || soon; });
      if (stop) break;
      soon = false;
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }

  // The last reading. Each level has one source.
  ByLevel<LevelSample> last() const {
    ByLevel<LevelSample> samples;
    const double span_s = until_s - sampled_s;
    for (const EnergyLevel level : kEnergyLevels) {
      const LevelAmount &a = at_sample[level], &b = at_end[level];
      samples[level] = {.time_s = sampled_s, .amount = a, .until_s = until_s};
      if (span_s > 0)
        samples[level].per_second = {(b.joules - a.joules) / span_s,
                                     (b.covered_s - a.covered_s) / span_s};
    }
    return samples;
  }
};

NodeSampler::NodeSampler(std::vector<std::unique_ptr<NodeMeters>> sources, double interval_s) {
  for (std::unique_ptr<NodeMeters>& meters : sources) {
    auto source = std::make_shared<Source>();
    for (const EnergyLevel level : kEnergyLevels) source->metered[level] = meters->metered(level);
    source->meters = std::move(meters);
    source->interval_s = interval_s;
    sources_.push_back(source);
    std::thread([source] { source->run(); }).detach();
  }
}

NodeSampler::~NodeSampler() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (const auto& source : sources_) {
    const std::lock_guard lock(source->mutex);
    source->stop = true;
    source->changed.notify_all();
  }
  for (const auto& source : sources_) {
    std::unique_lock lock(source->mutex);
    source->changed.wait_until(lock, deadline, [&] { return source->ended; });
  }
}

bool NodeSampler::metered(EnergyLevel level) const {
  return std::ranges::any_of(sources_, [&](const auto& one) { return one->metered[level]; });
}

NodeSampler::Look NodeSampler::look() {
  Look look;
  for (const auto& source : sources_) {
    const std::lock_guard lock(source->mutex);
    for (const ByLevel<LevelSample>& reading : source->unseen)
      for (const EnergyLevel level : kEnergyLevels)
        if (source->metered[level]) look.levels[level].push_back(reading[level]);
    source->unseen.clear();
  }
  look.now_s = steady_s();
  return look;
}

void NodeSampler::sample_soon() {
  const double now_s = steady_s();
  for (const auto& source : sources_) {
    const std::lock_guard lock(source->mutex);
    if (now_s - source->sampled_s < kLeastApart_s) continue;
    source->soon = true;
    source->changed.notify_all();
  }
}

ByLevel<LevelAmount> NodeSampler::now() {
  const double now_s = steady_s();
  for (const auto& source : sources_) {
    const std::lock_guard lock(source->mutex);
    const ByLevel<LevelSample> last = source->last();
    for (const EnergyLevel level : kEnergyLevels) {
      if (!source->metered[level]) continue;
      const LevelAmount now = last[level].at(now_s);
      LevelAmount& reported = reported_[level];
      reported.joules = std::max(reported.joules, now.joules);
      reported.covered_s = std::max(reported.covered_s, now.covered_s);
    }
  }
  return reported_;
}

std::vector<MeterState> NodeSampler::states() const {
  std::vector<MeterState> all;
  for (const auto& source : sources_) {
    const std::lock_guard lock(source->mutex);
    all.insert(all.end(), source->states.begin(), source->states.end());
  }
  return all;
}

}  // namespace kintsugi
