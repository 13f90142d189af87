// A sublayer that no family has and only this file knows: a stack of matrices with data groups of
// its own, a bounded number of rows, and an auxiliary loss.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/layers/sublayer.h"
#include "support/late_backend.h"
#include "support/parallel_run.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kExperts = 2;
constexpr double kPull = 0.2;  // coefficient of the auxiliary loss
constexpr std::string_view kSquares = "expert_squares";

struct ExpertStackSpec {
  std::string name;
  std::int64_t hidden = 0;
  DataGroups data = {};
  bool operator==(const ExpertStackSpec&) const = default;
};

// A token with id i is multiplied by matrix i % 3, or by none if that is 2. The auxiliary loss is
// kPull / 2 times the squares of the results. Tensors are fp64, in host memory.
class ExpertStack final : public Sublayer {
 public:
  explicit ExpertStack(const ExpertStackSpec& spec) : spec_(spec) {}

  void declare(Declaration& d) override {
    const std::int64_t h = spec_.hidden;
    own_ = kExperts / d.ranks().tensor;
    first_ = own_ * d.ranks().tensor_rank;
    KINTSUGI_CHECK(own_ > 0, "{} experts on {} ranks", kExperts, d.ranks().tensor);
    std::vector<std::string> names;
    for (std::int64_t i = 0; i < kExperts; ++i)
      names.push_back(fmt::format("{}.{}", spec_.name, i));
    stack_ = d.stack(names, h, h, 2.0 / 3,
                     {.group = ParameterGroup::Mlp,
                      .init = {InitKind::Normal, 0.3},
                      .shard = {.along = Declaration::Shard::Along::Matrices},
                      .data = spec_.data});
    x_ = d.saved({.label = "expert inputs", .per = Per::Bounded, .width = h});
    y_ = d.saved({.label = "expert outputs", .per = Per::Bounded, .width = h});
    dy_ = d.workspace({.label = "gradient of expert outputs",
                       .per = Per::Bounded,
                       .width = h,
                       .training = true,
                       .read_by_weights = true});
    d.sum(kSquares);
  }

  void forward(const LayerRun& run, Tensor x) const override {
    double squares = 0;
    for_each_row(run, [&](std::int64_t row, std::int64_t token, std::int64_t matrix) {
      double* const in = at(run[x_], row);
      double* const out = at(run[y_], row);
      std::copy_n(at(x, token), spec_.hidden, in);
      const double* const w = at(run.store().weight(stack_, shape()), matrix);
      for (std::int64_t i = 0; i < spec_.hidden; ++i) {
        out[i] = 0;
        for (std::int64_t j = 0; j < spec_.hidden; ++j) out[i] += w[i * spec_.hidden + j] * in[j];
        squares += out[i] * out[i];
      }
    });
    if (const Tensor sum = run.sum(kSquares)) *sum.as<double>() += squares;
  }

  void output(const LayerRun& run, Tensor y, Tensor residual) const override {
    residual ? run.backend().copy(y, residual) : run.backend().fill(y, 0.0);
    for_each_row(run, [&](std::int64_t row, std::int64_t token, std::int64_t) {
      for (std::int64_t i = 0; i < spec_.hidden; ++i) at(y, token)[i] += at(run[y_], row)[i];
    });
  }

  void backward_input(const LayerRun& run, Tensor dx, Tensor dy) const override {
    run.backend().fill(dx, 0.0);
    for_each_row(run, [&](std::int64_t row, std::int64_t token, std::int64_t matrix) {
      double* const gradient = at(run[dy_], row);
      const double* const w = at(run.store().weight(stack_, shape()), matrix);
      for (std::int64_t i = 0; i < spec_.hidden; ++i) {
        gradient[i] = at(dy, token)[i] + run.batch.gradient_scale * kPull * at(run[y_], row)[i];
        for (std::int64_t j = 0; j < spec_.hidden; ++j)
          at(dx, token)[j] += w[i * spec_.hidden + j] * gradient[i];
      }
    });
  }

  void backward_weight(const LayerRun&, Tensor) const override {}
  void backward_output_weight(const LayerRun& run, Tensor, Tensor) const override {
    const Tensor gradients = run.store().gradient(stack_, shape());
    if (!run.accumulates()) run.backend().fill(gradients, 0.0);
    for_each_row(run, [&](std::int64_t row, std::int64_t, std::int64_t matrix) {
      for (std::int64_t i = 0; i < spec_.hidden; ++i)
        for (std::int64_t j = 0; j < spec_.hidden; ++j)
          at(gradients, matrix)[i * spec_.hidden + j] += at(run[dy_], row)[i] * at(run[x_], row)[j];
    });
  }

 private:
  Shape shape() const { return {own_, spec_.hidden, spec_.hidden}; }
  // Element 0 of a row of a matrix, or of a matrix of a stack.
  static double* at(const Tensor& x, std::int64_t row) {
    return x.as<double>() + row * x.stride(0);
  }
  // Calls f(row, token, matrix of this rank's shard) for each token that this rank multiplies.
  template <class F>
  void for_each_row(const LayerRun& run, const F& f) const {
    std::int64_t row = 0;
    for (std::int64_t token = 0; token < run.size.tokens(); ++token) {
      const std::int64_t matrix = run.batch.ids.as<std::int32_t>()[token] % 3 - first_;
      if (matrix >= 0 && matrix < own_ && matrix + first_ < kExperts) f(row++, token, matrix);
    }
  }

  ExpertStackSpec spec_;
  std::int64_t own_ = 0, first_ = 0;  // matrices of this rank
  int stack_ = -1;
  Saved x_, y_;  // (tokens at most, hidden)
  Workspace dy_;
};

std::vector<LinearUse> linears_of(ExpertStackSpec&) { return {}; }
void clear_names_of(ExpertStackSpec& spec) { spec.name.clear(); }
std::shared_ptr<Sublayer> make_sublayer(const ExpertStackSpec& spec) {
  return std::make_shared<ExpertStack>(spec);
}

// Shard and replica group exchanged.
constexpr DataGroups kExchanged{GroupKind::Replica, GroupKind::Shard};

// Layers 1 and 2 have a stack: at their end, and before the MLP, with a norm behind it.
template <bool exchanged>
void add_stacks(ModelSpec& model) {
  for (std::size_t layer = 1; layer < std::min<std::size_t>(3, model.layers.size()); ++layer) {
    const std::string name = fmt::format("model.layers.{}.experts", layer);
    auto& branches = model.layers[layer].branches;
    const auto norm = [&](const char* of) {
      return NormSpec{.kind = NormKind::Rms, .eps = 1e-5, .name = name + of};
    };
    BranchSpec branch{.before = norm(".before"),
                      .sublayer = ExpertStackSpec{name + ".weight", model.hidden_size,
                                                  exchanged ? kExchanged : DataGroups{}}};
    if (layer == 2) branch.after = norm(".after");
    branches.insert(layer == 1 ? branches.end() : branches.begin() + 1, branch);
  }
}

Training training_of(bool exchanged) {
  Training training{.model = tiny_model("llama-gqa", 4),
                    .sequences = 16,
                    .micro = 2,
                    .length = 8,
                    .masked = true,
                    .optimizer = {.clip = 0.1}};  // so that the gradient norm matters
  training.model.change_layers = exchanged ? add_stacks<true> : add_stacks<false>;
  return training;
}

// One process; the groups decide the order of the weights.
const Outcome& alone(bool exchanged) {
  static const Outcome outcomes[] = {trained({}, training_of(false), 4),
                                     trained({}, training_of(true), 4)};
  return outcomes[exchanged ? 1 : 0];
}

TEST(ExpertStack, IsDeclared) {
  const ParameterSet set(training_of(true).model);
  const Parameter& stack = set[set.index("model.layers.1.experts.weight.1")];
  EXPECT_EQ(stack.global, (Shape{16, 16}));
  EXPECT_TRUE(stack.packed);
  EXPECT_EQ(stack.data, kExchanged);
  EXPECT_EQ(set.buckets()[static_cast<std::size_t>(stack.bucket)].data, kExchanged);
}

TEST(ExpertStack, TrainsInEveryLayoutAsInOneProcess) {
  const Training training = training_of(false);
  using enum PipelineKind;
  const std::vector<RankLayout> layouts = {
      {.dp = 2},
      {.tp = 2},
      {.tp = 2, .sequence_parallel = true},
      {.cp = 2},
      {.dp = 2, .zero = 3},
      {.pp = 2},
      {.pp = 2, .schedule = ZeroBubbleH1},
      {.pp = 2, .chunks = 2, .schedule = Interleaved},
      {.dp = 2, .zero = 2, .tp = 2, .cp = 2, .sequence_parallel = true},
      {.dp = 2, .zero = 1, .tp = 2, .pp = 2, .schedule = ZeroBubbleH1}};
  for (const RankLayout& layout : layouts)
    expect_same(trained(layout, training, 4), alone(false), to_string(layout));
}

TEST(ExpertStack, HasDataGroupsOfItsOwn) {
  for (const int zero : {1, 2, 3})
    for (const RankLayout& layout : {RankLayout{.dp = 4, .zero = zero, .shard_group = 1},
                                     RankLayout{.dp = 4, .zero = zero, .shard_group = 2, .tp = 2},
                                     RankLayout{.dp = 4, .zero = zero, .shard_group = 4},
                                     RankLayout{.dp = 2, .zero = zero, .cp = 2, .pp = 2}})
      expect_same(trained(layout, training_of(true), 4), alone(true), to_string(layout));
}

TEST(ExpertStack, IsRecomputed) {
  Training training = training_of(true);
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
    training.recompute = recompute;
    for (const RankLayout& layout :
         {RankLayout{}, RankLayout{.dp = 2, .zero = 2, .tp = 2, .sequence_parallel = true},
          RankLayout{.pp = 2, .schedule = PipelineKind::ZeroBubbleH1}})
      expect_same(trained(layout, training, 4), alone(true), to_string(layout));
  }
}

TEST(ExpertStack, HasGradientsOnTheHost) {
  Training training = training_of(true);
  training.offload = {
      .on = true, .gradients = true, .update = UpdateLocation::Device, .block_elements = 208};
  training.backend = [](int threads) -> std::unique_ptr<Backend> {
    return std::make_unique<LateBackend>(threads);
  };
  const RankLayout layout{.dp = 4, .zero = 2, .shard_group = 2};
  expect_same(trained(layout, training, 4), alone(true), to_string(layout));
}

// A checkpoint holds each stack whole and once.
TEST(ExpertStack, IsSavedAndContinuedInAnotherLayout) {
  const RankLayout saving{.dp = 4, .zero = 2, .shard_group = 2, .tp = 2},
      loading{.dp = 2, .zero = 3, .pp = 2};
  const TemporaryDirectory directory;
  std::filesystem::path middle;
  Outcome outcome;
  const Training exchanged = training_of(true), usual = training_of(false);
  on_ranks(saving, exchanged, [&](const Member& member) {
    train(member, 1, 2, outcome);
    TrainerState state;
    state.step = 2;
    const auto saved = save_checkpoint(directory.path(), member.engine, state, {.keep = 0});
    if (member.world.rank() == 0) middle = saved;
  });
  on_ranks(
      loading, usual,
      [&](const Member& member) {
        load_checkpoint(middle, member.engine);
        train(member, 3, 4, outcome);
      },
      false);
  expect_same(outcome, alone(false), "saved and continued");
}

// Without any target, only the auxiliary loss has a gradient, and steps make it smaller.
TEST(ExpertStack, IsTrainedByItsAuxiliaryLossAlone) {
  const auto squares_of = [](bool with_targets) {
    const Training training = training_of(false);
    const auto backend = training.backend(1);
    Engine engine(*backend, *backend, training.engine({}));
    engine.initialize(11);
    std::vector<std::int32_t> ids(16 * 8), targets(ids.size(), -1);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7 % 23);
    if (with_targets) targets = ids;
    std::vector<double> squares;
    for (std::int64_t step = 1; step <= 20; ++step) {
      const StepResult result =
          engine.step({.ids = ids, .targets = targets}, {.step = step, .lr = 1e-2});
      EXPECT_EQ(result.loss == 0, !with_targets);
      const double per = with_targets ? static_cast<double>(targets.size()) : 1.0;
      squares.push_back(per * value_of(result.scalars, kSquares));
    }
    return squares;
  };
  const std::vector<double> squares = squares_of(false);
  EXPECT_LT(squares.back(), 0.5 * squares.front());
  EXPECT_GT(squares_of(true).back(), squares.back());
}

}  // namespace
}  // namespace kintsugi
