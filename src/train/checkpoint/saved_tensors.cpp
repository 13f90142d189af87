#include "train/checkpoint/saved_tensors.h"

namespace kintsugi {

std::vector<SavedKind> saved_kinds(Engine& engine, const ParameterSet& whole) {
  const Sharding& sharding = engine.sharding();
  const OptimizerState& state = engine.optimizer().state();
  const DType precision = engine.options().precision;
  std::vector<SavedKind> kinds;
  const auto weights = [&](const StateSegment& segment) {
    return sharding.weights_at(segment.bucket, segment.range);
  };
  // A model with adapters consists of them and of its base, which is not saved again.
  const bool frozen = !engine.options().model.lora.on();
  kinds.push_back({.part = CheckpointPart::Model,
                   .prefix = "",
                   .dtype = precision,
                   .owned = weights,
                   .frozen = frozen,
                   .peft = !frozen});
  if (state.has_master())
    kinds.push_back({CheckpointPart::State, kMasterPrefix, accumulator_of(precision),
                     [&](const StateSegment& segment) { return state.master(segment); }});
  if (state.has_ema()) {
    kinds.push_back({.part = CheckpointPart::Average,
                     .prefix = "",
                     .dtype = accumulator_of(precision),
                     .owned = [&](const StateSegment& segment) { return state.ema(segment); },
                     .peft = !frozen});
    kinds.push_back({.part = CheckpointPart::Average,
                     .prefix = "",
                     .dtype = precision,
                     .owned = weights,
                     .trained = false,
                     .frozen = frozen});
  }
  for (const UpdateRule* const rule : rules_of(whole, engine.optimizer().rules())) {
    const std::vector<StateSlot> slots = rule->slots(precision);
    for (std::size_t i = 0; i < slots.size(); ++i)
      kinds.push_back({CheckpointPart::State, slots[i].name + ".", slots[i].dtype,
                       [&state, i](const StateSegment& segment) { return state.slot(segment, i); },
                       rule});
  }
  return kinds;
}

bool is_rounded_master(const Engine& engine, const SavedKind& kind, const StateSegment& segment) {
  return kind.part == CheckpointPart::Model && kind.has(segment) &&
         engine.sharding().is_unrounded(segment.bucket);
}

std::vector<StateSegment> saved_segments(const Engine& engine) {
  const Sharding& sharding = engine.sharding();
  std::vector<StateSegment> segments = engine.optimizer().state().segments();
  for (int bucket = 0; bucket < static_cast<int>(sharding.set().buckets().size()); ++bucket)
    if (!sharding.trained(bucket) && sharding.owned(bucket).size() > 0)
      segments.push_back({.bucket = bucket, .range = sharding.owned(bucket)});
  return segments;
}

Sharding::Range written_range(const Engine& engine, const StateSegment& segment) {
  const Sharding::Range owned = segment.range;
  const Communicator& replica = engine.sharding().replica(segment.bucket);
  return {owned.begin + owned.size() * replica.rank() / replica.size(),
          owned.begin + owned.size() * (replica.rank() + 1) / replica.size()};
}

Tensor written_elements(const Engine& engine, const SavedKind& kind, const StateSegment& segment) {
  const Sharding::Range written = written_range(engine, segment);
  return kind.owned(segment).rows(written.begin - segment.range.begin, written.size());
}

}  // namespace kintsugi
