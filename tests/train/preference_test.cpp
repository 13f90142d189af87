// DPO: the loss of preference pairs through the Engine.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "support/paths.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/files.h"
#include "train/initial_weights.h"

namespace kintsugi {
namespace {

using Tokens = std::vector<std::int32_t>;

// Rows of packed pairs. The first `prompt` tokens of a sequence have no loss.
struct Pairs {
  explicit Pairs(std::int64_t row_length) : length(row_length) {}

  void add(std::int64_t row, const Tokens& tokens, std::size_t prompt, double reference) {
    const auto needed = static_cast<std::size_t>((row + 1) * length);
    for (Tokens* table : {&ids, &positions, &starts}) table->resize(std::max(needed, ids.size()));
    targets.resize(ids.size(), -1);
    const std::int64_t begin =
        sequences.empty() || sequences.back().row < row ? 0 : sequences.back().end;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = static_cast<std::size_t>(row * length + begin) + i;
      ids[at] = tokens[i];
      positions[at] = static_cast<std::int32_t>(i);
      starts[at] = static_cast<std::int32_t>(begin);
      targets[at] = i + 1 < tokens.size() && i + 1 >= prompt ? tokens[i + 1] : -1;
    }
    sequences.push_back({row, begin, begin + static_cast<std::int64_t>(tokens.size()), reference});
  }
  // What is left of a row sees only itself.
  void finish() {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const bool last = i + 1 == sequences.size() || sequences[i + 1].row > sequences[i].row;
      for (std::int64_t at = sequences[i].end; last && at < length; ++at)
        starts[static_cast<std::size_t>(sequences[i].row * length + at)] =
            static_cast<std::int32_t>(sequences[i].end);
    }
  }
  TokenBatch batch() const {
    return {.ids = ids,
            .targets = targets,
            .positions = positions,
            .document_start = starts,
            .sequences = sequences};
  }

  std::int64_t length;
  Tokens ids, targets, positions, starts;
  std::vector<TokenSequence> sequences;
};

Pairs three_pairs() {
  Pairs pairs(16);
  pairs.add(0, {5, 9, 2, 44}, 2, -7.5);
  pairs.add(0, {5, 9, 17, 3, 1}, 2, -12.0);
  pairs.add(0, {8, 30, 31}, 1, -9.0);
  pairs.add(0, {8, 2}, 1, -4.5);
  pairs.add(1, {60, 61, 7, 7, 50, 2}, 3, -11.5);
  pairs.add(1, {60, 61, 7, 12}, 3, -3.0);
  pairs.finish();
  return pairs;
}

EngineOptions options_of(const PreferenceOptions& preference, std::int64_t micro = 2) {
  const ModelConfig model = parse_model_yaml(
      "family: llama\nvocab_size: 64\nhidden_size: 16\nlayers: 2\nheads: 4\nmax_positions: 64\n"
      "init_std: 0.2\n",
      "test");
  return {.model = model,
          .precision = DType::F64,
          .layout = {.micro_batch = micro},
          .length = 16,
          .preference = preference,
          .documents = true};
}

// The log-probabilities of the sequences, summed in the test from the losses of tokens.
std::vector<double> log_probabilities(Engine& engine, const Pairs& pairs) {
  std::vector<double> sums(pairs.sequences.size());
  engine.score(pairs.batch(), [&](std::size_t token, double loss, double) {
    const auto row = static_cast<std::int64_t>(token) / pairs.length,
               at = static_cast<std::int64_t>(token) % pairs.length;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const TokenSequence& one = pairs.sequences[i];
      if (one.row == row && one.begin <= at && at < one.end) sums[i] -= loss;
    }
  });
  return sums;
}

TEST(Preference, LossAndRewardsAreThoseOfTheFormula) {
  const auto backend = make_cpu_backend(2);
  for (const double smoothing : {0.0, 0.25})
    for (const std::int64_t micro : {2, 1}) {
      const double beta = 0.2;
      Engine engine(*backend, *backend, options_of({beta, smoothing}, micro));
      engine.initialize(5);
      const Pairs pairs = three_pairs();
      const std::vector<double> log_p = log_probabilities(engine, pairs);
      double loss = 0, chosen = 0, rejected = 0, accurate = 0;
      for (std::size_t i = 0; i < log_p.size(); i += 2) {
        const double c = beta * (log_p[i] - pairs.sequences[i].reference),
                     r = beta * (log_p[i + 1] - pairs.sequences[i + 1].reference);
        const double p = 1 / (1 + std::exp(r - c));
        loss -= ((1 - smoothing) * std::log(p) + smoothing * std::log(1 - p)) / 3;
        chosen += c / 3;
        rejected += r / 3;
        accurate += c > r ? 1.0 / 3 : 0;
      }
      EXPECT_EQ(engine.targets_of(pairs.batch()), 3);
      EXPECT_NEAR(engine.evaluate(pairs.batch()).front() / 3, loss, 1e-12);
      const StepResult step = engine.step(pairs.batch(), {.step = 1, .lr = 1e-3});
      EXPECT_NEAR(step.loss, loss, 1e-12);
      EXPECT_NEAR(value_of(step.scalars, "reward_chosen"), chosen, 1e-12);
      EXPECT_NEAR(value_of(step.scalars, "reward_rejected"), rejected, 1e-12);
      EXPECT_NEAR(value_of(step.scalars, "reward_accuracy"), accurate, 1e-12);
      EXPECT_GT(step.gradient_norm, 1e-3);
      Engine scaled(*backend, *backend, options_of({beta, smoothing}, micro));
      scaled.initialize(5);
      EXPECT_NEAR(
          scaled.step(pairs.batch(), {.step = 1, .lr = 1e-3, .loss_scale = 1024}).gradient_norm,
          step.gradient_norm, 1e-12);
    }
}

// Moves all weights along a random direction.
TEST(Preference, GradientsMatchTheLoss) {
  const auto backend = make_cpu_backend(2);
  EngineOptions options = options_of({.beta = 0.2, .label_smoothing = 0.1}, 1);
  options.optimizer = {.weight_decay = 0};
  Engine engine(*backend, *backend, options);
  engine.initialize(5);
  const Pairs pairs = three_pairs();
  engine.step(pairs.batch(), {.step = 1, .lr = 0});
  const Tensor weights = engine.sharding().weights(), gradients = engine.sharding().gradients();
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<double> direction(static_cast<std::size_t>(weights.elements()));
  double slope = 0;
  const double unscale = static_cast<double>(pairs.ids.size()) / 3;
  for (std::size_t i = 0; i < direction.size(); ++i) {
    direction[i] = normal(random);
    slope += direction[i] * gradients.as<double>()[i] * unscale;
  }
  const std::vector<double> before(weights.as<double>(), weights.as<double>() + direction.size());
  const auto at = [&](double t) {
    for (std::size_t i = 0; i < direction.size(); ++i)
      weights.as<double>()[i] = before[i] + t * direction[i];
    return engine.evaluate(pairs.batch()).front() / 3;
  };
  const double h = 1e-4;
  const double expected = (at(-2 * h) - 8 * at(-h) + 8 * at(h) - at(2 * h)) / (12 * h);
  EXPECT_NEAR(slope, expected, 1e-7 * std::max(1.0, std::abs(expected)));
}

template <class T>
std::vector<T> values_of(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(*file.find(name));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Twenty steps from the weights of tests/data/llama, computed by PyTorch in fp32
// (make_finetune_fixtures.py). Both sequences of a pair are in one row.
TEST(Preference, TwentyStepsAsPyTorch) {
  const std::filesystem::path data = test_data_directory();
  const SafetensorsFile file(data / "finetune" / "dpo.safetensors");
  const auto ids = values_of<std::int32_t>(file, "ids"),
             lengths = values_of<std::int32_t>(file, "lengths"),
             masks = values_of<std::int32_t>(file, "masks");
  const auto reference = values_of<float>(file, "reference"),
             losses = values_of<float>(file, "losses"), norms = values_of<float>(file, "norms"),
             chosen = values_of<float>(file, "chosen"),
             rejected = values_of<float>(file, "rejected"),
             accuracy = values_of<float>(file, "accuracy");
  const std::size_t steps = losses.size(), sequences = lengths.size() / steps,
                    width = ids.size() / lengths.size();
  ASSERT_EQ(steps, 20u);
  const auto backend = make_cpu_backend(2);
  Engine engine(*backend, *backend,
                {.model = read_model_directory(data / "llama"),
                 .layout = {.micro_batch = 2},
                 .length = static_cast<std::int64_t>(2 * width),
                 .preference = PreferenceOptions{.beta = 0.1},
                 .optimizer = {.beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .decay_embeddings = true,
                               .clip = 1.0},
                 .documents = true});
  engine.prepare();
  load_initial_weights(data / "llama", engine);
  for (std::size_t step = 0; step < steps; ++step) {
    Pairs pairs(static_cast<std::int64_t>(2 * width));
    for (std::size_t i = 0; i < sequences; ++i) {
      const std::size_t one = step * sequences + i;
      const auto first = ids.begin() + static_cast<std::ptrdiff_t>(one * width);
      const auto prompt = static_cast<std::size_t>(
          std::find(masks.begin() + static_cast<std::ptrdiff_t>(one * width), masks.end(), 1) -
          masks.begin() - static_cast<std::ptrdiff_t>(one * width));
      pairs.add(static_cast<std::int64_t>(i / 2), Tokens(first, first + lengths[one]), prompt,
                reference[one]);
    }
    pairs.finish();
    if (step == 0) {
      const std::vector<double> log_p = log_probabilities(engine, pairs);
      for (std::size_t i = 0; i < log_p.size(); ++i) EXPECT_NEAR(log_p[i], reference[i], 2e-5);
    }
    const StepResult result =
        engine.step(pairs.batch(), {.step = static_cast<std::int64_t>(step) + 1, .lr = 1e-3});
    EXPECT_NEAR(result.loss, losses[step], 1e-5) << "step " << step;
    EXPECT_NEAR(result.gradient_norm, norms[step], 1e-5 * std::max(1.0f, norms[step])) << step;
    EXPECT_NEAR(value_of(result.scalars, "reward_chosen"), chosen[step], 1e-5) << step;
    EXPECT_NEAR(value_of(result.scalars, "reward_rejected"), rejected[step], 1e-5) << step;
    // In the first step the rewards are rounding errors.
    if (step > 0) {
      EXPECT_NEAR(value_of(result.scalars, "reward_accuracy"), accuracy[step], 1e-6) << step;
    }
  }
}

}  // namespace
}  // namespace kintsugi
