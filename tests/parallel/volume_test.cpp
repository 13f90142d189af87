// Compares the counted bytes that a rank sends in a step with the closed forms of
// volume_formulas.h.
#include <gtest/gtest.h>

#include "parallel/volume_formulas.h"
#include "support/counting_communicator.h"

namespace kintsugi {
namespace {

// ---- counted bytes

constexpr std::array kCountedGroups = {"world", "tp",   "cp",    "pp",     "kv",
                                       "tied",  "copy", "shard", "replica"};
constexpr std::array kSending = {Collective::AllReduce, Collective::ReduceScatter,
                                 Collective::AllGather, Collective::Broadcast,
                                 Collective::AllToAll,  Collective::Send};

// Bytes by rank in one of `steps` identical steps.
std::vector<Sent> counted(const RankLayout& layout, const Training& training, int steps = 2) {
  std::vector<std::unique_ptr<CountingWorld>> worlds(static_cast<std::size_t>(layout.ranks()));
  on_ranks(
      layout, training,
      [&](const Member& member) {
        for (int step = 1; step <= steps; ++step) member.step(step);
      },
      true,
      [&](World& world) -> World& {
        auto& counting = worlds[static_cast<std::size_t>(world.rank())];
        counting = std::make_unique<CountingWorld>(world);
        return *counting;
      });
  std::vector<Sent> all;
  for (const auto& world : worlds) {
    Sent& sent = all.emplace_back();
    for (const char* group : kCountedGroups)
      for (const Collective kind : kSending)
        sent[{group, kind}] = world->traffic(group)[kind].bytes / steps;
  }
  return all;
}

void expect_equal(const Sent& actual, const Sent& expected, const std::string& who) {
  for (const auto& [key, bytes] : actual) {
    const auto found = expected.find(key);
    // Exact to the byte, except for the rounding of thirds.
    EXPECT_NEAR(bytes, found == expected.end() ? 0.0 : found->second, 1e-6)
        << who << ": " << to_string(key.second) << " in " << key.first;
  }
}

void expect_volume(const RankLayout& layout, const Training& training) {
  SCOPED_TRACE(fmt::format("{}, {} sequences, {} layers, recompute {} every {}, bf16 sums {}",
                           to_string(layout), training.sequences, training.model.layers,
                           to_string(training.recompute), training.recompute_every,
                           training.reduce_in_bf16));
  const Grid grid{layout.tp, layout.cp, layout.dp, layout.pp, layout.shard()};
  const std::vector<Sent> sent = counted(layout, training);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const StepVolume step(layout, training, coordinates_of(grid, rank));
    Sent own = sent[static_cast<std::size_t>(rank)];
    if (layout.shard() > 1)  // distributed unevenly: checked in the sums below
      for (const char* uneven : {"tp", "kv", "tied", "replica"})
        own.erase({uneven, Collective::AllReduce});
    expect_equal(own, step.sent(), fmt::format("rank {}", rank));
    if (layout.zero == 3 && training.sequences == layout.dp) {
      EXPECT_LE(step.gathers_per_element(), 2);  // and a reduction: 3Ψ
    }
    if (layout.shard() == 1 ||
        group_position(grid, GroupKind::Shard, coordinates_of(grid, rank)).rank > 0)
      continue;
    Sent together;
    for (const int other : group_members(grid, GroupKind::Shard, rank))
      for (const auto& [key, bytes] : sent[static_cast<std::size_t>(other)]) together[key] += bytes;
    expect_equal(together, step.summed_over_shard(), fmt::format("shard group of rank {}", rank));
  }
}

Training training_of(const std::string& model, int layers, int micro_batches, DType precision,
                     int ranks) {
  return {.model = tiny_model(model, layers),
          .precision = precision,
          .sequences = std::int64_t{micro_batches} * ranks,
          .micro = 1};
}

// The models for which the formulas hold: without norms and retention over all heads, and without
// routers, whose gradients tensor ranks add.
std::vector<std::string> models() {
  std::vector<std::string> all = tiny_models();
  std::erase_if(all, [](const std::string& name) {
    return name.starts_with("olmo") || name == "retnet" || tiny_model(name, 1).experts;
  });
  return all;
}

// ---- data ranks

TEST(CommunicationVolume, IsThatOfTheFormulas) {
  for (const std::string& model : models())
    for (const RankLayout& layout :
         {RankLayout{4, 0}, RankLayout{4, 1}, RankLayout{3, 2}, RankLayout{4, 3},
          RankLayout{6, 1, 3}, RankLayout{4, 2, 2}, RankLayout{8, 3, 2}})
      for (const int micro_batches : {1, 3})
        expect_volume(layout, training_of(model, 4, micro_batches, DType::F32, layout.dp));
}

// The contents of the slots depend on the number of layers.
TEST(CommunicationVolume, OfEveryDepth) {
  for (const int layers : {1, 2, 3, 5, 6})
    for (const char* model : {"gpt2", "llama-untied", "bloom-untied"})
      for (const int micro_batches : {1, 2})
        expect_volume({2, 3}, training_of(model, layers, micro_batches, DType::F32, 2));
}

TEST(CommunicationVolume, OfSixteenBits) {
  for (const bool narrow : {false, true})
    for (const RankLayout& layout :
         {RankLayout{4, 0}, RankLayout{4, 1}, RankLayout{4, 2, 2}, RankLayout{4, 3}}) {
      Training training = training_of("llama-untied", 3, 2, DType::BF16, layout.dp);
      training.reduce_in_bf16 = narrow;
      expect_volume(layout, training);
    }
}

// As in the papers: without padding and with one micro-batch, 2Ψ for ZeRO 0 to 2 and at most 3Ψ for
// ZeRO 3, times (N - 1) / N.
TEST(CommunicationVolume, IsTwoOrThreeTimesTheModel) {
  ModelConfig model = tiny_model("llama-untied", 6);
  model.hidden_size = model.ffn_size = 64;
  model.head_dim = 0;
  model.vocab_size = 64;
  model.complete_and_check();
  const double psi = static_cast<double>(ParameterSet(model).buffer_elements()) * 4;
  for (const int zero : {0, 1, 2, 3}) {
    const Training training{.model = model, .precision = DType::F32, .sequences = 2};
    double sent = 0;
    const std::vector<Sent> ranks = counted({2, zero}, training, 1);
    for (const auto& [key, bytes] : ranks[0])
      if (key.first == (zero == 0 ? "replica" : "shard")) sent += bytes;
    const double expected = (zero == 3 ? 3 : 2) * psi / 2;
    EXPECT_LE(sent, expected + 8) << zero;
    EXPECT_GE(sent, (zero == 3 ? 0.8 : 1.0) * expected) << zero;
  }
}

// ---- tensor, context and pipeline ranks

// bf16, so that activations and accumulators differ in size.
Training shared_training(const std::string& model, int layers = 4, std::int64_t sequences = 4) {
  return {.model = tiny_model(model, layers),
          .precision = DType::BF16,
          .sequences = sequences,
          .length = 8};
}

TEST(CommunicationVolume, OfTensorRanks) {
  for (const std::string& model : models())
    for (const int tp : {2, 4})
      for (const bool sp : {false, true})
        expect_volume({.tp = tp, .sequence_parallel = sp}, shared_training(model, 3, 2));
}

TEST(CommunicationVolume, OfContextRanks) {
  for (const std::string& model : models()) {
    expect_volume({.cp = 2}, shared_training(model, 2, 2));
    expect_volume({.cp = 4}, shared_training(model, 2, 2));
    expect_volume({.tp = 2, .cp = 2}, shared_training(model, 2, 2));
    for (const int cp : {2, 4})
      expect_volume({.cp = cp, .context = ContextMethod::Ulysses}, shared_training(model, 2, 2));
    expect_volume({.tp = 2, .cp = 2, .context = ContextMethod::Ulysses},
                  shared_training(model, 2, 2));
  }
}

const std::vector<RankLayout>& pipelines() {
  static const std::vector<RankLayout> all = {
      {.pp = 2, .schedule = PipelineKind::GPipe},
      {.pp = 4, .schedule = PipelineKind::OneForwardOneBackward},
      {.pp = 2, .chunks = 2, .schedule = PipelineKind::Interleaved},
      {.pp = 2, .schedule = PipelineKind::ZeroBubbleH1, .split = {3, 1}}};
  return all;
}

TEST(CommunicationVolume, OfPipelines) {
  for (const std::string& model : models())
    for (const RankLayout& layout : pipelines()) expect_volume(layout, shared_training(model));
}

TEST(CommunicationVolume, OfRecomputing) {
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full})
    for (const int every : {1, 2})
      for (const RankLayout& pipeline : pipelines())
        for (const bool sp : {false, true}) {
          RankLayout layout = pipeline;
          layout.tp = layout.cp = 2;
          layout.sequence_parallel = sp;
          Training training = shared_training("llama-gqa");
          training.recompute = recompute;
          training.recompute_every = every;
          for (const ContextMethod context : {ContextMethod::Ring, ContextMethod::Ulysses}) {
            layout.context = context;
            expect_volume(layout, training);
          }
        }
}

// Everything at once, with stages of many and of few layers.
TEST(CommunicationVolume, OfAllTogether) {
  int turn = 0;
  for (const std::string& model : models())
    for (const RankLayout& pipeline : pipelines())
      for (const int zero : {0, 1, 2, 3}) {
        if (zero < 3 && model != "gpt2" && model != "qwen3") continue;
        const bool hybrid = zero == 1 && pipeline.pp == 2;  // two replicas of two shards
        RankLayout layout = pipeline;
        layout.tp = 2;
        layout.dp = hybrid || ++turn % 2 == 0 ? 2 : 1;
        layout.cp = hybrid || layout.dp == 1 ? 2 : 1;
        layout.zero = zero;
        layout.shard_group = hybrid ? 2 : 0;
        layout.sequence_parallel = true;
        if (!layout.split.empty()) layout.split = {5, 1};
        Training training = shared_training(model, 6, 4 * layout.dp);
        training.dropout = 0.1;
        training.documents = true;
        expect_volume(layout, training);
      }
}

}  // namespace
}  // namespace kintsugi
