// What a rank sends in a step, counted, against closed forms.
#include <gtest/gtest.h>

#include <numeric>

#include "comm/counting_communicator.h"
#include "support/parallel_run.h"

namespace kintsugi {
namespace {

// Elements of each bucket, filled up to equal parts of whole lines of 16 among `shard` ranks.
std::vector<double> padded(const ParameterSet& set, int shard) {
  std::vector<double> buckets;
  for (const Bucket& bucket : set.buckets()) {
    std::int64_t part = bucket.end - bucket.begin;
    if (shard > 1) part = ((part + shard - 1) / shard + 15) / 16 * 16;
    buckets.push_back(static_cast<double>(part * shard));
  }
  return buckets;
}

double sum(const std::vector<double>& values, std::size_t from, std::size_t to) {
  double total = 0;
  for (std::size_t i = from; i < to; ++i) total += values[i];
  return total;
}

// Elements that ZeRO-3 gathers in a step of `passes`. Layers alternate between two slots, so that
// the last two are still there when the way back begins, and the first two when the next pass does;
// those between are gathered on both ways. Embedding and head, if tied, have slots of their own and
// come once. If not, they take turns in one: the head comes in every pass; the embedding too,
// unless the way back needed it again, for its norm, and left it there.
double gathered(const std::vector<double>& b, const ModelConfig& model, double passes) {
  const std::size_t layers = b.size() - 2;
  const double embedding = b.front(), head = b.back();
  const double middle_back = layers > 2 ? sum(b, 1, layers - 1) : 0,
               middle_forth = layers > 2 ? sum(b, 3, layers + 1) : 0;
  double elements = sum(b, 1, layers + 1) + passes * middle_back + (passes - 1) * middle_forth;
  if (model.tied)
    elements += embedding + head;
  else if (model.traits().embedding_norm)
    elements += embedding + passes * (head + embedding);
  else
    elements += passes * (head + embedding);
  return elements;
}

struct Volume {
  Training training;
  int passes;
  RankLayout layout;
};

Training training_of(const std::string& model, int layers, int passes, DType precision, int ranks) {
  return {.model = tiny_model(model, layers),
          .precision = precision,
          .sequences = std::int64_t{passes} * ranks,
          .micro = 1};
}

void expect_volume(const Volume& run) {
  const auto& [training, passes, layout] = run;
  SCOPED_TRACE(fmt::format("{}, {} passes, {} layers, bf16 on the way {}", to_string(layout),
                           passes, training.model.layers, training.reduce_in_bf16));
  std::vector<std::unique_ptr<CountingWorld>> worlds(static_cast<std::size_t>(layout.dp));
  std::vector<double> owned(worlds.size());
  const auto wrap = [&](World& world) -> World& {
    auto& counting = worlds[static_cast<std::size_t>(world.rank())];
    counting = std::make_unique<CountingWorld>(world);
    return *counting;
  };
  on_ranks(
      layout, training,
      [&](const Member& member) {
        member.step(1);
        member.step(2);  // the same as the first, and the ones to come
        const auto rank = static_cast<std::size_t>(member.world.rank());
        for (int bucket = 0; bucket < static_cast<int>(member.engine.parameters().buckets().size());
             ++bucket)
          owned[rank] += static_cast<double>(member.engine.sharding().owned(bucket).size());
      },
      true, wrap);

  const ParameterSet set(training.model);
  const int shard = layout.shard(), replicas = layout.replicas();
  const std::vector<double> buckets = padded(set, shard);
  const double psi = sum(buckets, 0, buckets.size()), n = shard, r = replicas;
  const double weight = static_cast<double>(size_of(training.precision));
  const double wide = static_cast<double>(size_of(accumulator_of(training.precision)));
  const double gradient = training.reduce_in_bf16 ? 2 : wide;
  const double gathers = layout.zero == 3 ? gathered(buckets, training.model, passes) : psi;
  const double scatters = layout.zero >= 2 ? passes : 1;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
    const Traffic& within = worlds[rank]->traffic("shard");
    const Traffic& across = worlds[rank]->traffic("replica");
    EXPECT_DOUBLE_EQ(within[Collective::ReduceScatter].bytes / 2,
                     shard == 1 ? 0 : scatters * psi * (n - 1) / n * gradient);
    EXPECT_DOUBLE_EQ(within[Collective::AllGather].bytes / 2,
                     shard == 1 ? 0 : gathers * (n - 1) / n * weight);
    EXPECT_DOUBLE_EQ(across[Collective::AllReduce].bytes / 2,
                     replicas == 1 ? 0 : 2 * owned[rank] * (r - 1) / r * gradient);
    EXPECT_DOUBLE_EQ(within[Collective::AllReduce].bytes / 2, 2 * (n - 1) / n * wide)
        << "nothing but the norm";
    EXPECT_EQ(across[Collective::AllGather].calls + across[Collective::ReduceScatter].calls, 0);
  }
  // The parts of a shard group make up the model.
  EXPECT_EQ(std::accumulate(owned.begin(), owned.begin() + shard, 0.0),
            static_cast<double>(set.buffer_elements()));
  if (layout.zero == 3 && passes == 1) {
    EXPECT_LE(gathers + psi, 3 * psi);
  }
}

TEST(CommunicationVolume, IsThatOfTheFormulas) {
  for (const std::string& model : tiny_models())
    for (const RankLayout& layout :
         {RankLayout{4, 0}, RankLayout{4, 1}, RankLayout{3, 2}, RankLayout{4, 3},
          RankLayout{6, 1, 3}, RankLayout{4, 2, 2}, RankLayout{8, 3, 2}})
      for (const int passes : {1, 3})
        expect_volume({training_of(model, 4, passes, DType::F32, layout.dp), passes, layout});
}

// What is still in a slot depends on how many layers there are.
TEST(CommunicationVolume, OfEveryDepth) {
  for (const int layers : {1, 2, 3, 5, 6})
    for (const char* model : {"gpt2", "llama-untied", "bloom-untied"})
      for (const int passes : {1, 2})
        expect_volume({training_of(model, layers, passes, DType::F32, 2), passes, {2, 3}});
}

TEST(CommunicationVolume, OfSixteenBits) {
  for (const bool narrow : {false, true})
    for (const RankLayout& layout :
         {RankLayout{4, 0}, RankLayout{4, 1}, RankLayout{4, 2, 2}, RankLayout{4, 3}}) {
      Training training = training_of("llama-untied", 3, 2, DType::BF16, layout.dp);
      training.reduce_in_bf16 = narrow;
      expect_volume({training, 2, layout});
    }
}

// In the words of the papers: with whole parts and one pass, 2Ψ for ZeRO 0 to 2 and at most 3Ψ for
// ZeRO 3, of (N - 1) / N each.
TEST(CommunicationVolume, IsTwoOrThreeTimesTheModel) {
  ModelConfig model = tiny_model("llama-untied", 6);
  model.hidden_size = model.ffn_size = 64;
  model.head_dim = 0;
  model.vocab_size = 64;
  model.complete_and_check();
  const double psi = static_cast<double>(ParameterSet(model).buffer_elements()) * 4;
  for (const int zero : {0, 1, 2, 3}) {
    Training training{.model = model, .precision = DType::F32, .sequences = 2};
    std::vector<std::unique_ptr<CountingWorld>> worlds(2);
    on_ranks(
        {2, zero}, training, [](const Member& member) { member.step(1); }, true,
        [&](World& world) -> World& {
          auto& counted = worlds[static_cast<std::size_t>(world.rank())];
          counted = std::make_unique<CountingWorld>(world);
          return *counted;
        });
    const double sent = worlds[0]->traffic(zero == 0 ? "replica" : "shard").bytes();
    const double expected = (zero == 3 ? 3 : 2) * psi / 2;
    EXPECT_LE(sent, expected + 8) << zero;
    EXPECT_GE(sent, (zero == 3 ? 0.8 : 1.0) * expected) << zero;
  }
}

}  // namespace
}  // namespace kintsugi
