// Muon against plain loops, and its matrices in every layout.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "optim/matrix_exchange.h"
#include "support/counting_communicator.h"
#include "support/directory_contents.h"
#include "support/late_backend.h"
#include "support/parallel_run.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

using Numbers = std::vector<double>;

// ---- the plain form

struct PlainMatrix {
  std::size_t rows, columns;
  Numbers x;
  double& at(std::size_t i, std::size_t j) { return x[i * columns + j]; }
  double at(std::size_t i, std::size_t j) const { return x[i * columns + j]; }
};

PlainMatrix product(const PlainMatrix& a, const PlainMatrix& b) {
  PlainMatrix c{a.rows, b.columns, Numbers(a.rows * b.columns, 0.0)};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.columns; ++k)
      for (std::size_t j = 0; j < b.columns; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
  return c;
}

PlainMatrix transposed(const PlainMatrix& a) {
  PlainMatrix t{a.columns, a.rows, Numbers(a.x.size())};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  return t;
}

// x <- a x + b (x x^T) x + c (x x^T)^2 x, always in this form.
PlainMatrix orthogonalized(PlainMatrix x, int steps) {
  double norm = 0;
  for (const double value : x.x) norm += value * value;
  for (double& value : x.x) value /= std::max(std::sqrt(norm), 1e-7);
  for (int step = 0; step < steps; ++step) {
    const PlainMatrix gram = product(x, transposed(x)), once = product(gram, x),
                      twice = product(gram, once);
    for (std::size_t i = 0; i < x.x.size(); ++i)
      x.x[i] = 3.4445 * x.x[i] - 4.7750 * once.x[i] + 2.0315 * twice.x[i];
  }
  return x;
}

// The matrices of a parameter: lists of its elements, row by row.
std::vector<std::vector<std::size_t>> matrices_of(const Parameter& parameter,
                                                  const ModelConfig& model) {
  const auto rows = static_cast<std::size_t>(parameter.global[0]),
             columns = static_cast<std::size_t>(parameter.global[1]),
             head = static_cast<std::size_t>(model.head_dim);
  const bool gpt2 = parameter.name.find("c_attn") != std::string::npos,
             bloom = parameter.name.find("query_key_value") != std::string::npos;
  std::vector<std::vector<std::size_t>> matrices(gpt2 || bloom ? 3 : 1);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) {
      // GPT-2: q, k and v side by side. BLOOM: by head.
      const std::size_t of = gpt2 ? j / (columns / 3) : bloom ? i / head % 3 : 0;
      matrices[of].push_back(i * columns + j);
    }
  return matrices;
}

void plain_update(const Parameter& parameter, const ModelConfig& model, Numbers& weight,
                  Numbers& moment, const Numbers& gradient, double lr, double decay,
                  LrAdjustment adjust) {
  const auto all = matrices_of(parameter, model);
  auto rows = static_cast<std::size_t>(parameter.global[0]),
       columns = static_cast<std::size_t>(parameter.global[1]);
  (parameter.name.find("c_attn") != std::string::npos ? columns : rows) /= all.size();
  for (const auto& elements : all) {
    PlainMatrix direction{rows, columns, {}};
    for (const std::size_t i : elements) {
      moment[i] = 0.95 * moment[i] + 0.05 * gradient[i];
      direction.x.push_back(0.95 * moment[i] + 0.05 * gradient[i]);
    }
    const PlainMatrix result = orthogonalized(direction, 5);
    const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
    const double rate = lr * (adjust == LrAdjustment::Original ? std::sqrt(std::max(1.0, r / c))
                                                               : 0.2 * std::sqrt(std::max(r, c)));
    for (std::size_t k = 0; k < elements.size(); ++k)
      weight[elements[k]] = (1 - lr * decay) * weight[elements[k]] - rate * result.x[k];
  }
}

Training muon_training(const std::string& model, DType precision = DType::F64) {
  Training training{.model = tiny_model(model, 3),
                    .precision = precision,
                    .sequences = 8,
                    .length = 8,
                    .lr = 1e-2};
  training.optimizer.kind = OptimizerKind::Muon;
  return training;
}

Numbers part_of(const Numbers& all, const Parameter& parameter) {
  const auto first = all.begin() + parameter.offset;
  return {first, first + parameter.global.elements()};
}

TEST(Muon, UpdatesAsPlainLoops) {
  for (const char* model : {"gpt2", "bloom", "llama-gqa", "retnet"})
    for (const LrAdjustment adjust : {LrAdjustment::MatchRmsAdamW, LrAdjustment::Original}) {
      SCOPED_TRACE(model);
      Training training = muon_training(model);
      training.optimizer.clip = 0;
      training.optimizer.weight_decay = 0.3;
      training.optimizer.muon.adjust_lr = adjust;
      const ParameterSet set(training.model);
      Numbers before = trained({}, training, 0).weights;
      std::map<std::string, Numbers> moments;
      on_ranks({}, training, [&](const Member& member) {
        for (int step = 1; step <= 3; ++step) {
          Outcome outcome;
          train(member, step, step, outcome);
          Numbers gradients(static_cast<std::size_t>(set.buffer_elements()));
          member.engine.backend().download(gradients.data(), member.engine.sharding().gradients());
          for (const Parameter& parameter : set.parameters()) {
            if (!parameter.hidden) continue;
            Numbers weight = part_of(before, parameter);
            Numbers& moment = moments[parameter.name];
            moment.resize(weight.size());
            plain_update(parameter, training.model, weight, moment, part_of(gradients, parameter),
                         training.lr, 0.3, adjust);
            EXPECT_LT(difference(part_of(outcome.weights, parameter), weight), 1e-11)
                << parameter.name << ", step " << step;
          }
          before = outcome.weights;
        }
      });
      EXPECT_GE(moments.size(), 12u);
    }
}

TEST(Muon, LeavesTheOtherParametersToAdamW) {
  Training training = muon_training("llama-untied");
  training.optimizer.clip = 0;
  Training adamw = training;
  adamw.optimizer.kind = OptimizerKind::AdamW;
  const ParameterSet set(training.model);
  const Outcome muon = trained({}, training, 1), other = trained({}, adamw, 1);
  int matrices = 0;
  for (const Parameter& parameter : set.parameters()) {
    const bool same = part_of(muon.weights, parameter) == part_of(other.weights, parameter);
    EXPECT_EQ(same, !parameter.hidden) << parameter.name;
    const bool hidden = parameter.name.find("_proj.weight") != std::string::npos;
    EXPECT_EQ(parameter.hidden, hidden) << parameter.name;
    matrices += hidden ? 1 : 0;
  }
  EXPECT_EQ(matrices, 3 * 7);
}

// A diagonal matrix stays diagonal: each singular value is iterated by itself.
TEST(Muon, IteratesSingularValues) {
  const auto backend = make_cpu_backend(1);
  const auto rule = make_muon({.kind = OptimizerKind::Muon});
  const MatrixRule& muon = *rule;
  for (const bool tall : {false, true}) {
    constexpr std::int64_t kSmall = 3, kLarge = 5;
    const std::int64_t rows = tall ? kLarge : kSmall, columns = tall ? kSmall : kLarge;
    const Numbers values = {3.0, -0.5, 0.01};
    Numbers x(15, 0.0), other(15), gram(9), square(9), norms(1);
    for (std::size_t i = 0; i < 3; ++i) x[i * static_cast<std::size_t>(columns) + i] = values[i];
    const auto tensor = [](Numbers& memory, Shape shape) {
      return Tensor(memory.data(), DType::F64, shape);
    };
    const Tensor result =
        muon.transform(*backend, {.x = tensor(x, {1, rows, columns}),
                                  .other = tensor(other, {1, rows, columns}),
                                  .squares = {tensor(gram, {1, 3, 3}), tensor(square, {1, 3, 3})},
                                  .squared_norms = tensor(norms, {1})});
    const double norm = std::sqrt(9.0 + 0.25 + 1e-4);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        double expected = i == j ? values[static_cast<std::size_t>(i)] / norm : 0.0;
        for (int step = 0; step < 5; ++step)
          expected =
              expected * (3.4445 - 4.7750 * expected * expected + 2.0315 * std::pow(expected, 4));
        EXPECT_NEAR(result.as<double>()[i * columns + j], expected, 1e-12);
      }
  }
}

// ---- layouts

const RankLayout kMuonLayouts[] = {
    {.dp = 4},
    {.dp = 4, .zero = 1},
    {.dp = 4, .zero = 2},
    {.dp = 4, .zero = 3},
    {.dp = 4, .zero = 3, .shard_group = 2},
    {.tp = 2},
    {.tp = 4},
    {.tp = 2, .sequence_parallel = true},
    {.dp = 2, .zero = 1, .tp = 2},
    {.dp = 2, .zero = 3, .tp = 4},
    {.dp = 4, .zero = 1, .shard_group = 2, .tp = 2},
    {.cp = 2},
    {.dp = 2, .zero = 2, .cp = 2},
    {.pp = 3},
    {.dp = 2, .zero = 1, .tp = 2, .pp = 3},
    {.dp = 8},
};

TEST(Muon, TrainsTheSameInEveryLayout) {
  for (const char* model : {"gpt2", "bloom", "llama-gqa"}) {
    const Training training = muon_training(model);
    const Outcome expected = trained({}, training, 5);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    for (const RankLayout& layout : kMuonLayouts) {
      if (layout.cp > 1 && training.model.family == Family::Bloom) continue;
      expect_same(trained(layout, training, 5), expected, to_string(layout));
    }
  }
}

TEST(Muon, AccumulatesAsInOneMicroBatch) {
  Training training = muon_training("llama-gqa");
  training.micro = 8;
  const Outcome expected = trained({}, training, 5);
  training.micro = 1;
  expect_same(trained({.dp = 2, .zero = 2}, training, 5), expected, "8 micro-batches");
}

fs::path save_muon(const fs::path& directory, const Member& member, std::int64_t step) {
  TrainerState state;
  state.step = step;
  const fs::path saved = save_checkpoint(directory, member.engine, state, {.keep = 0});
  member.groups[GroupKind::World].barrier();
  return saved;
}

TEST(Muon, IsTheSameOffloaded) {
  for (const DType precision : {DType::F64, DType::BF16})
    for (const RankLayout& layout :
         {RankLayout{}, RankLayout{.dp = 4, .zero = 3}, RankLayout{.dp = 2, .tp = 2}}) {
      Training training = muon_training("llama-gqa", precision);
      training.backend = [](int threads) -> std::unique_ptr<Backend> {
        return std::make_unique<LateBackend>(threads);
      };
      const Outcome expected = trained(layout, training, 4);
      for (const UpdateLocation location : {UpdateLocation::Device, UpdateLocation::Host})
        for (const std::int64_t elements : {208, 1 << 22}) {
          SCOPED_TRACE(fmt::format("{}, {}, {}, {}", to_string(layout), to_string(precision),
                                   to_string(location), elements));
          training.offload = {.on = true, .update = location, .block_elements = elements};
          const Outcome actual = trained(layout, training, 4);
          EXPECT_EQ(actual.losses, expected.losses);
          EXPECT_EQ(actual.weights, expected.weights);
        }
      // Offloaded gradients are summed in another order.
      training.offload = {
          .on = true, .gradients = true, .update = UpdateLocation::Device, .block_elements = 208};
      if (precision == DType::F64) {
        EXPECT_LT(difference(trained(layout, training, 4).weights, expected.weights), 1e-8);
      }
    }
}

TEST(Muon, ResumesBitForBitAndInOtherLayouts) {
  const Training training = muon_training("gpt2");
  const RankLayout layout{.dp = 2, .zero = 1, .tp = 2};
  const Outcome straight = trained(layout, training, 4);
  const TemporaryDirectory directory;
  Outcome outcome;
  fs::path middle;
  on_ranks(layout, training, [&](const Member& member) {
    train(member, 1, 2, outcome);
    const fs::path saved = save_muon(directory.path(), member, 2);
    if (member.world.rank() == 0) middle = saved;
  });
  const Outcome begun = outcome;
  const auto resumed = [&](const RankLayout& in) {
    Outcome result = begun;
    on_ranks(
        in, training,
        [&](const Member& member) {
          load_checkpoint(middle, member.engine);
          train(member, 3, 4, result);
        },
        false);
    return result;
  };
  const Outcome same = resumed(layout);
  EXPECT_EQ(same.losses, straight.losses);
  EXPECT_EQ(same.weights, straight.weights);
  for (const RankLayout& other : {RankLayout{}, RankLayout{.dp = 4, .zero = 3}})
    expect_same(resumed(other), straight, to_string(other));
}

// The error names the key, not a tensor that is missing.
TEST(Muon, AnotherOptimizersCheckpointIsRefused) {
  const Training muon = muon_training("llama-gqa");
  Training adamw = muon;
  adamw.optimizer.kind = OptimizerKind::AdamW;
  for (const bool forward : {true, false}) {
    const TemporaryDirectory directory;
    fs::path saved;
    on_ranks({}, forward ? muon : adamw,
             [&](const Member& member) { saved = save_muon(directory.path(), member, 1); });
    std::string message;
    on_ranks(
        {}, forward ? adamw : muon,
        [&](const Member& member) {
          try {
            load_checkpoint(saved, member.engine);
          } catch (const UserError& error) {
            message = error.what();
          }
        },
        false);
    EXPECT_NE(message.find(forward ? "has the state of Muon" : "has the state of AdamW"),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("optimizer.kind"), std::string::npos) << message;
  }
}

// Also with more replicas than matrices: each result is sent once.
TEST(Muon, ReplicasSendEachResultOnce) {
  Training training = muon_training("llama-gqa");
  training.model = tiny_model("llama-gqa", 1);
  std::int64_t hidden = 0;
  const ParameterSet set(training.model);
  for (const Parameter& parameter : set.parameters())
    if (parameter.hidden) hidden += parameter.shape.elements();
  for (const RankLayout& layout : {RankLayout{.dp = 2}, RankLayout{.dp = 8}}) {
    std::vector<std::unique_ptr<CountingWorld>> worlds(static_cast<std::size_t>(layout.ranks()));
    on_ranks(
        layout, training, [&](const Member& member) { member.step(1); }, true,
        [&](World& world) -> World& {
          auto& counting = worlds[static_cast<std::size_t>(world.rank())];
          counting = std::make_unique<CountingWorld>(world);
          return *counting;
        });
    for (const auto& world : worlds)
      EXPECT_EQ(world->traffic("replica")[Collective::Broadcast].bytes,
                static_cast<double>(8 * hidden));
  }
}

TEST(Muon, HasOneMomentAndNoMore) {
  Training muon = muon_training("llama-gqa", DType::F32), adamw = muon;
  adamw.optimizer.kind = OptimizerKind::AdamW;
  std::int64_t hidden = 0;
  const ParameterSet set(muon.model);
  for (const Parameter& parameter : set.parameters())
    if (parameter.hidden) hidden += parameter.shape.elements();
  const auto slots = [](const Training& training) {
    std::size_t bytes = 0;
    on_ranks({}, training, [&](const Member& member) {
      for (const auto& rule : member.engine.optimizer().state().rules())
        for (const Tensor& slot : rule.slots) bytes += slot.bytes();
    });
    return bytes;
  };
  EXPECT_EQ(slots(adamw) - slots(muon), static_cast<std::size_t>(4 * hidden));
}

// ---- who owns what

TEST(MatrixPlan, GivesEachMatrixToOneOwnerAndBalancesFlops) {
  ModelConfig model = tiny_model("llama-gqa", 5);
  const ParameterSet set(model);
  const auto rule = make_muon({.kind = OptimizerKind::Muon});
  const MatrixRule& muon = *rule;
  const auto adamw = make_adamw({});
  const UpdateRules rules = [&](const Parameter& parameter) -> const UpdateRule& {
    if (parameter.hidden) return muon;
    return *adamw;
  };
  double total = 0, largest = 0;
  for (const Parameter& parameter : set.parameters()) {
    if (!parameter.hidden) continue;
    const double flops = muon.flops(parameter.global[0], parameter.global[1]);
    total += flops;
    largest = std::max(largest, flops);
  }
  for (const int owners : {1, 2, 3, 7, 35, 100}) {
    std::multiset<int> given;
    std::vector<double> load(static_cast<std::size_t>(owners));
    for (const MatrixRound& round : plan_matrices(set, rules, muon, {}, owners, 3000)) {
      ASSERT_EQ(round.size(), load.size());
      for (std::size_t owner = 0; owner < round.size(); ++owner) {
        std::int64_t elements = 0;
        for (const int i : round[owner]) {
          given.insert(i);
          load[owner] += muon.flops(set[i].global[0], set[i].global[1]);
          EXPECT_EQ(set[i].global, set[round[owner].front()].global);
          elements += set[i].global.elements();
        }
        EXPECT_TRUE(elements <= 3000 || round[owner].size() == 1);
      }
    }
    EXPECT_EQ(given.size(), 35u);
    EXPECT_EQ(std::set<int>(given.begin(), given.end()).size(), 35u);
    // Graham's bound of the greedy assignment.
    const double best = std::max(total / owners, largest);
    EXPECT_LE(*std::max_element(load.begin(), load.end()), best * 4 / 3 + 1e-6) << owners;
  }
}

}  // namespace
}  // namespace kintsugi
