#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/recompute.h"
#include "optim/optimizer.h"
#include "parallel/layout.h"
#include "parallel/schedule.h"

namespace kintsugi {

// What is to be trained, whatever the layout.
struct PlanJob {
  ModelConfig model = {};
  std::int64_t length = 0;  // tokens of a sequence
  std::int64_t batch = 0;   // sequences of a step
  DType precision = DType::BF16;
  bool reduce_in_bf16 = false;
  bool documents = false;
  DType moments = DType::F32;
  std::int64_t classifier_elements = std::int64_t{1} << 28;  // as the device will answer

  std::int64_t classifier_chunk = 0;  // tokens of logits at a time; 0: as the device chooses
  std::int64_t checkpoint_every = 0;  // steps; 0: never
  std::vector<int> split = {};        // layers of each part of a pipeline; empty: balanced

  double tokens() const { return static_cast<double>(batch) * static_cast<double>(length); }
};

// One way to spread it.
struct PlanLayout {
  int tp = 1, cp = 1, pp = 1, dp = 1;
  int chunks = 1;
  PipelineKind schedule = PipelineKind::OneForwardOneBackward;
  std::int64_t micro = 1;
  int zero = 0;
  int shard_group = 0;  // data ranks that share a copy; 0: all
  bool sequence_parallel = false;
  Recompute recompute = Recompute::None;
  int recompute_every = 1;

  int ranks() const { return tp * cp * pp * dp; }
  bool operator==(const PlanLayout&) const = default;
};

// The grid of a layout that fit_layout accepts.
Grid grid_of(const PlanJob& job, const PlanLayout& layout);
LayoutRequest request_of(const PlanJob& job, const PlanLayout& layout);
std::int64_t micro_batches_of(const PlanJob& job, const PlanLayout& layout);
std::string to_string(const PlanLayout& layout);  // "tp4 pp16 dp2 micro1 zero1 …"

}  // namespace kintsugi
