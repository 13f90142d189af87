#include "train/checkpoint/snapshot.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace kintsugi {

std::vector<SavedKind> saved_kinds(Engine& engine, const ParameterSet& whole) {
  const Sharding& sharding = engine.sharding();
  const OptimizerState& state = engine.optimizer().state();
  const DType precision = engine.options().precision;
  std::vector<SavedKind> kinds;
  const auto weights = [&](const StateRange& segment) {
    return sharding.weights_at(segment.bucket, segment.range);
  };
  // A model with adapters consists of them and of its base, which is not saved again.
  const bool frozen = !engine.options().model.lora.on();
  kinds.push_back({.part = CheckpointDirectory::Model,
                   .prefix = "",
                   .dtype = precision,
                   .owned = weights,
                   .frozen = frozen,
                   .peft = !frozen});
  const auto add_wide = [&](CheckpointDirectory part) {
    kinds.push_back({.part = part,
                     .prefix = "",
                     .dtype = accumulator_of(precision),
                     .owned = weights,
                     .trained = false,
                     .wide = frozen});
  };
  add_wide(CheckpointDirectory::Model);
  if (state.has_master())
    kinds.push_back({CheckpointDirectory::State, kMasterPrefix, accumulator_of(precision),
                     [&](const StateRange& segment) { return state.master(segment); }});
  if (state.has_ema()) {
    kinds.push_back({.part = CheckpointDirectory::Average,
                     .prefix = "",
                     .dtype = accumulator_of(precision),
                     .owned = [&](const StateRange& segment) { return state.ema(segment); },
                     .peft = !frozen});
    kinds.push_back({.part = CheckpointDirectory::Average,
                     .prefix = "",
                     .dtype = precision,
                     .owned = weights,
                     .trained = false,
                     .frozen = frozen});
    add_wide(CheckpointDirectory::Average);
  }
  for (const UpdateRule* const rule : rules_of(whole, engine.optimizer().rules())) {
    const std::vector<StateSlot> slots = rule->slots(precision);
    for (std::size_t i = 0; i < slots.size(); ++i)
      kinds.push_back({CheckpointDirectory::State, slots[i].name + ".", slots[i].dtype,
                       [&state, i](const StateRange& segment) { return state.slot(segment, i); },
                       rule});
  }
  return kinds;
}

bool is_rounded_master(const Engine& engine, const SavedKind& kind, const StateRange& segment) {
  return kind.part == CheckpointDirectory::Model && segment.rule != nullptr && kind.has(segment) &&
         engine.sharding().is_unrounded(segment.bucket);
}

std::vector<StateRange> saved_segments(const Engine& engine) {
  const Sharding& sharding = engine.sharding();
  std::vector<StateRange> segments = engine.optimizer().state().segments();
  for (int bucket = 0; bucket < static_cast<int>(sharding.set().buckets().size()); ++bucket)
    if (!sharding.trained(bucket) && sharding.owned(bucket).size() > 0)
      segments.push_back({.bucket = bucket,
                          .wide = sharding.set().buckets()[bucket].wide,
                          .range = sharding.owned(bucket)});
  return segments;
}

Sharding::Range written_range(const Engine& engine, const StateRange& segment) {
  const Sharding::Range owned = segment.range;
  const Communicator& replica = engine.sharding().replica(segment.bucket);
  return {owned.begin + owned.size() * replica.rank() / replica.size(),
          owned.begin + owned.size() * (replica.rank() + 1) / replica.size()};
}

Tensor written_elements(const Engine& engine, const SavedKind& kind, const StateRange& segment) {
  const Sharding::Range written = written_range(engine, segment);
  return kind.owned(segment).rows(written.begin - segment.range.begin, written.size());
}

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kCopiedAtOnce = std::size_t{4} << 20;  // bytes
constexpr std::size_t kCopyThreads = 4;  // one does not use the bandwidth of the memory

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Calls f(kind, segment, bytes) for every tensor of the snapshot, by kind and segment; 0 bytes if
// the kind does not have the segment, or has the master weights there.
void for_each_tensor(const Engine& engine, const std::vector<StateRange>& segments,
                     const std::vector<SavedKind>& kinds, const auto& f) {
  for (const SavedKind& kind : kinds)
    for (const StateRange& segment : segments) {
      const auto elements = static_cast<std::size_t>(written_range(engine, segment).size());
      const bool copied = kind.has(segment) && !is_rounded_master(engine, kind, segment);
      f(kind, segment, copied ? elements * size_of(kind.dtype) : 0);
    }
}

struct HostCopy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

// The threads take turns; each copy is short.
void copy_all(const std::vector<HostCopy>& copies) {
  const auto work = [&](std::size_t first, std::size_t threads) {
    for (std::size_t i = first; i < copies.size(); i += threads)
      std::memcpy(copies[i].to, copies[i].from, copies[i].bytes);
  };
  const std::size_t threads = std::min(kCopyThreads, copies.size() / 4);
  if (threads < 2) return work(0, 1);
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back([&, i] { work(i, threads); });
  work(0, threads);
}

}  // namespace

std::size_t Snapshot::bytes_of(Engine& engine) {
  const ParameterSet whole(engine.options().model);
  std::size_t bytes = 0;
  for_each_tensor(engine, saved_segments(engine), saved_kinds(engine, whole),
                  [&](const auto&, const auto&, std::size_t one) { bytes += aligned(one); });
  return std::max(bytes, HostBuffers::kPage);
}

Snapshot::Snapshot(Engine& engine)
    : engine_(engine),
      kinds_(saved_kinds(engine, ParameterSet(engine.options().model))),
      segments_(saved_segments(engine)),
      memory_(engine.backend(), 1, bytes_of(engine)) {
  std::byte* next = memory_[0];
  for_each_tensor(engine, segments_, kinds_,
                  [&](const SavedKind& kind, const StateRange& segment, std::size_t bytes) {
                    copies_.push_back(bytes == 0 ? Tensor()
                                                 : Tensor(next, kind.dtype,
                                                          {written_range(engine, segment).size()}));
                    next += aligned(bytes);
                  });
}

Snapshot::~Snapshot() {
  try {
    finish();
  } catch (...) {
    // The device has failed; the exception in flight reports it.
  }
}

Tensor Snapshot::at(std::size_t kind, std::size_t segment) const {
  if (is_rounded_master(engine_, kinds_[kind], segments_[segment])) {
    const auto master = std::ranges::find_if(
        kinds_, [](const SavedKind& one) { return one.prefix == kMasterPrefix; });
    KINTSUGI_CHECK(master != kinds_.end(), "unrounded weights without master weights");
    kind = static_cast<std::size_t>(master - kinds_.begin());
  }
  return copies_[kind * segments_.size() + segment];
}

void Snapshot::take() {
  Backend& backend = engine_.backend();
  std::vector<HostCopy> on_host;
  std::size_t index = 0;
  for_each_tensor(engine_, segments_, kinds_,
                  [&](const SavedKind& kind, const StateRange& segment, std::size_t bytes) {
                    const Tensor& copy = copies_[index++];
                    if (bytes == 0) return;
                    const Tensor source = written_elements(engine_, kind, segment);
                    if (!backend.is_on_host(source)) {
                      transfers_.push_back(backend.to_host(copy, source));
                      return;
                    }
                    for (std::size_t begin = 0; begin < bytes; begin += kCopiedAtOnce)
                      on_host.push_back({static_cast<std::byte*>(copy.data()) + begin,
                                         static_cast<const std::byte*>(source.data()) + begin,
                                         std::min(kCopiedAtOnce, bytes - begin)});
                  });
  if (!on_host.empty()) backend.synchronize();  // offloaded state may still be in flight
  copy_all(on_host);
}

void Snapshot::wait() {
  for (const Backend::Transfer transfer : std::exchange(transfers_, {}))
    engine_.backend().wait(transfer);
}

void Snapshot::finish() {
  for (const Backend::Transfer transfer : std::exchange(transfers_, {}))
    engine_.backend().finish(transfer);
}

}  // namespace kintsugi
