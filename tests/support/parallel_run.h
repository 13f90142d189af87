#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "comm/grid.h"
#include "eval/classification_scores.h"
#include "model/families/family.h"
#include "train/engine.h"

namespace kintsugi {

// The layout of a test.
struct RankLayout {
  int dp = 1;
  int zero = 0;
  int shard_group = 0;  // 0: all data ranks
  int experts = 1;      // data ranks that hold different experts
  Dispatch dispatch = Dispatch::AllGather;
  int tp = 1;
  int cp = 1;
  ContextMethod context = ContextMethod::Ring;
  int pp = 1;
  int chunks = 1;
  PipelineKind schedule = PipelineKind::OneForwardOneBackward;
  bool sequence_parallel = false;
  std::vector<int> split = {};

  int ranks() const { return tp * cp * dp * pp; }
  int shard() const { return zero == 0 ? 1 : shard_group == 0 ? cp * dp : shard_group; }
  int replicas() const { return cp * dp / shard(); }
  bool operator==(const RankLayout&) const = default;
};
std::string to_string(const RankLayout& layout);  // "tp 2 × cp 1 × dp 4 × pp 1, ZeRO 3"

// A small model of each kind of tiny_models(): gpt2, llama-tied, llama-untied, llama-gqa, qwen2, …
ModelConfig tiny_model(const std::string& kind, std::int64_t layers, std::int64_t heads = 4);
const std::vector<std::string>& tiny_models();
// The same with fp8 matmuls, whose sizes are multiples of 16 on 1 and 2 tensor ranks.
ModelConfig tiny_fp8_model(const std::string& kind, Fp8Recipe recipe = Fp8Recipe::Rowwise);

// A training job; the same in every layout.
struct Training {
  ModelConfig model;
  DType precision = DType::F64;
  std::int64_t sequences = 1;           // per step, over all ranks
  std::vector<std::int64_t> ramp = {};  // the same, of the first steps
  std::int64_t micro = 1;               // sequences per micro-batch on one rank
  std::int64_t length = 7;
  Recompute recompute = Recompute::None;
  int recompute_every = 1;
  double dropout = 0;
  bool documents = false;  // use document masks, if the family supports them
  bool has_documents() const {
    return (documents || preference) && family_info(model.family).document_masks;
  }
  bool masked = false;    // some targets have no loss, unevenly distributed
  bool weighted = false;  // losses have weights
  std::optional<PreferenceOptions> preference = {};  // rows hold up to two preference pairs
  bool reduce_in_bf16 = false;
  double z_loss = 0;
  OptimizerSettings optimizer = {};
  StateOffload offload = {};
  bool offload_inputs = false;
  std::unique_ptr<Backend> (*backend)(int threads) = make_cpu_backend;
  double lr = 3e-3;
  std::int64_t limited_step = 0;  // the step with these limits
  StepLimits limits = {};

  Layout layout(const RankLayout& ranks) const;
  EngineOptions engine(const RankLayout& ranks) const;
};

// One rank of a test: its groups and its engine. Ranks are threads of this process.
struct Member {
  World& world;
  const Groups& groups;
  Engine& engine;
  const RankLayout& layout;
  const Training& training;

  // On this data rank's sequences of the step's batch.
  StepResult step(std::int64_t step, double loss_scale = 1.0) const;
  double evaluate(std::int64_t step) const;
  ConfusionMatrix classify(std::int64_t step) const;  // over all ranks

 private:
  std::int64_t local_sequences(std::int64_t step) const;
  template <class F>
  auto on_batch(std::int64_t step, const F& use) const;
};
using MemberFunction = std::function<void(const Member&)>;
// Calls the function on every rank. `initialize`: initialize the weights first. `wrap`, if given,
// replaces the World from which the groups are split.
using WrapWorld = std::function<World&(World&)>;
void on_ranks(const RankLayout& layout, const Training& training, const MemberFunction& function,
              bool initialize = true, const WrapWorld& wrap = {});

struct Outcome {
  std::vector<double> losses, norms;  // by step
  std::vector<double> scalars = {};   // those of Engine::scalars(), by step
  std::vector<bool> outliers = {};    // by step
  std::vector<double> weights;        // in the numbering of the whole model
};
// Trains steps [first, last]: appends losses and norms to the outcome and stores the weights. Fails
// the test unless all ranks have the same losses and weights.
void train(const Member& member, std::int64_t first, std::int64_t last, Outcome& outcome);
Outcome trained(const RankLayout& layout, const Training& training, std::int64_t steps);

// The largest difference, relative to max(1, |expected|).
double difference(const std::vector<double>& actual, const std::vector<double>& expected);
// Describes how an fp64 run differs from the expected one: losses and norms must agree to 1e-10,
// weights to 1e-8. Empty: they agree. For fp32 runs see rounding.h.
std::string complaint(const Outcome& actual, const Outcome& expected);
void expect_same(const Outcome& actual, const Outcome& expected, const std::string& what);

}  // namespace kintsugi
