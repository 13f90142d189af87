// A flipped bit in one copy of the weights is found, with its rank and its parameter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "comm/socket.h"
#include "support/captured_log.h"
#include "support/parallel_run.h"
#include "support/rank_trainers.h"
#include "support/small_run.h"
#include "train/trainer/rank_checks.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kNorm = "model.layers.1.input_layernorm.weight";
// The first one of its layer, so rank 0 stores its beginning also with ZeRO 3.
const std::string kFirst = "model.layers.0.self_attn.q_proj.weight";
const std::string kMatrix = "model.layers.0.mlp.up_proj.weight";

// Flips the lowest bit of one stored element of a parameter.
void flip_bit(Engine& engine, const std::string& name) {
  engine.sharding().finish_weights();
  const Parameter& parameter = engine.parameters()[engine.parameters().index(name)];
  const Sharding::Range stored = engine.sharding().stored_weights(parameter.bucket);
  const std::int64_t at = std::max(stored.begin, parameter.offset + 3);
  ASSERT_LT(at, std::min(stored.end, parameter.offset + parameter.shape.elements()));
  const Tensor element = engine.sharding().weights_at(parameter.bucket, {at, at + 1});
  *static_cast<std::byte*>(element.data()) ^= std::byte{1};
}

// What the check says on every rank after a step and, if `rank` is not negative, a flipped bit.
std::string found(const RankLayout& layout, int rank, const std::string& name) {
  std::vector<std::string> texts(static_cast<std::size_t>(layout.ranks()));
  on_ranks(layout,
           {.model = tiny_model("llama-untied", 2),
            .precision = DType::F32,
            .sequences = 12,
            .length = 8},
           [&](const Member& member) {
             member.step(1);
             EXPECT_EQ(differing_replicas(member.engine), "");
             if (member.world.rank() == rank) flip_bit(member.engine, name);
             texts[static_cast<std::size_t>(member.world.rank())] =
                 differing_replicas(member.engine);
           });
  for (const std::string& text : texts) EXPECT_EQ(text, texts.front());
  return texts.front();
}

TEST(ReplicaCheck, NamesTheRankThatDiffersFromTheMajority) {
  for (const int zero : {0, 1, 2}) {
    SCOPED_TRACE(zero);
    EXPECT_EQ(found({.dp = 3, .zero = zero}, 1, kMatrix),
              "the copies of " + kMatrix + " on data-parallel replicas differ: rank 1 on node " +
                  host_name());
  }
}

TEST(ReplicaCheck, NamesBothOfTwo) {
  EXPECT_THAT(found({.dp = 2}, 1, kNorm),
              AllOf(HasSubstr(kNorm), HasSubstr("ranks 0 on node"), HasSubstr(", 1 on node")));
}

// With one data rank, only the norms have copies.
TEST(ReplicaCheck, FindsDriftOfNormsBetweenTensorRanks) {
  EXPECT_THAT(found({.tp = 4}, 2, kNorm),
              AllOf(HasSubstr(kNorm + " on tensor ranks differ: rank 2 on node")));
  EXPECT_EQ(found({.tp = 4}, 2, kMatrix), "") << "no other rank has this shard";
}

TEST(ReplicaCheck, WorksInEveryLayout) {
  EXPECT_THAT(found({.dp = 3, .tp = 2}, 4, kMatrix), HasSubstr("rank 4 on node"));
  EXPECT_THAT(found({.dp = 2, .cp = 2, .pp = 2}, 5, kNorm), HasSubstr("rank 5 on node"));
  // Two replicas of each shard.
  EXPECT_THAT(found({.dp = 4, .zero = 3, .shard_group = 2}, 0, kFirst),
              AllOf(HasSubstr("ranks 0 on node"), HasSubstr(", 2 on node")));
  EXPECT_EQ(found({.dp = 3, .zero = 3}, 0, kFirst), "") << "nothing is replicated";
}

TEST(ReplicaCheck, UndisturbedRunsPass) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const CapturedLog log;
  for (const char* layout :
       {"layout={zero: 0, tp: 2}", "layout={zero: 1}", "layout={zero: 3, tp: 2}"})
    EXPECT_EQ(train_on_ranks(2,
                             small_config(corpus, directory / "run" / layout,
                                          "steps: 4, eval_every: 0, checkpoint_every: 3"),
                             {layout, "batch.global=8", "train.verify_replicas_every=2"}),
              RunOutcome::Finished);
}

}  // namespace
}  // namespace kintsugi
