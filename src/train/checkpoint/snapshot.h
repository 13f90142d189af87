#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/adapter/stored_adapter.h"
#include "tensor/arena.h"
#include "train/engine.h"

namespace kintsugi {

inline constexpr const char* kAverage = "ema";  // the directory of the averaged weights
inline constexpr const char* kMasterPrefix = "master.";

// The directories of a checkpoint. Average is inside that of the model.
enum class CheckpointDirectory { Model, Average, State };

// One kind of tensor that is saved per parameter: weight, average, master or an optimizer slot.
struct SavedKind {
  CheckpointDirectory part;
  std::string prefix;
  DType dtype;
  std::function<Tensor(const StateRange& segment)> owned;  // the elements this rank owns
  const UpdateRule* rule = nullptr;  // only parameters with this rule have it; nullptr: all
  // Which parameters have it: those that are trained, those that are not, and those that are wide.
  bool trained = true, frozen = false, wide = false;
  bool peft = false;  // the tensors have the names of PEFT's files

  std::string name_of(const Parameter& parameter) const {
    return prefix + (peft ? name_in_adapter(parameter) : parameter.name);
  }

  bool has(const StateRange& segment) const {
    if (segment.rule == nullptr) return segment.wide ? wide : frozen;
    return trained && (rule == nullptr || rule == segment.rule);
  }
  bool has(const Parameter& parameter, const UpdateRules& rules) const {
    if (!parameter.trained) return parameter.wide ? wide : frozen;
    return trained && (rule == nullptr || rule == &rules(parameter));
  }
};
// Takes the parameters of the whole model, so that all ranks return the same list. The engine must
// outlive it.
std::vector<SavedKind> saved_kinds(Engine& engine, const ParameterSet& whole);

// Whether the elements of a kind are the master weights, to be rounded to the kind's dtype.
bool is_rounded_master(const Engine& engine, const SavedKind& kind, const StateRange& segment);

// The segments of what this rank owns: those of the optimizer, then the buckets that are not
// trained, without a rule.
std::vector<StateRange> saved_segments(const Engine& engine);

// The elements of a segment that this rank writes. Each is written by one rank: replicas split the
// range that they all own.
Sharding::Range written_range(const Engine& engine, const StateRange& segment);
Tensor written_elements(const Engine& engine, const SavedKind& kind, const StateRange& segment);

// A copy in host memory of everything that this rank writes to a checkpoint, so that the next step
// may change the weights while the copy is written to files.
class Snapshot {
 public:
  static std::size_t bytes_of(Engine& engine);  // that it allocates; also for a planned engine

  explicit Snapshot(Engine& engine);  // the engine must outlive it
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Copies from host memory, and starts the copies from the device. Until wait() or finish(), the
  // weights and the optimizer state must not change.
  void take();
  // Makes operations that are queued on the backend from now on start after the copies.
  void wait();
  void finish();  // blocks until the copies are done

  // The copy of written_elements(). `kind` and `segment` are indexes in saved_kinds() and
  // saved_segments(). Empty if that kind has no such segment.
  Tensor at(std::size_t kind, std::size_t segment) const;

 private:
  Engine& engine_;
  std::vector<SavedKind> kinds_;
  std::vector<StateRange> segments_;
  HostBuffers memory_;
  std::vector<Tensor> copies_;  // by kind and segment
  std::vector<Backend::Transfer> transfers_;
};

}  // namespace kintsugi
