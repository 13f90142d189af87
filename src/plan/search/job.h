#pragma once

#include <cstdint>

#include "model/config.h"
#include "optim/optimizer.h"
#include "parallel/layout.h"

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

  double tokens() const { return static_cast<double>(batch) * static_cast<double>(length); }
};

inline Workload work_of(const PlanJob& job) { return {job.model, job.batch, job.length}; }

}  // namespace kintsugi
