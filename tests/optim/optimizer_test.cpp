// Compares the optimizer on a whole model with a reference AdamW in double, parameter by parameter.
#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/cpu_backend.h"

namespace kintsugi {
namespace {

using Values = std::vector<double>;

ModelConfig two_layer_model(Family family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.layers = 2;
  config.heads = 2;
  if (family != Family::Bloom) config.ffn_size = 12;
  config.max_positions = 5;
  config.tied = family != Family::Llama;
  config.complete_and_check();
  return config;
}

class Bench {
 public:
  Bench(Family family, DType dtype, const OptimizerSettings& settings)
      : backend_(make_cpu_backend(1)),
        set_(two_layer_model(family)),
        arena_(*backend_),
        groups_(single_rank_groups(*backend_)),
        sharding_(*backend_, arena_, set_, groups_, {.precision = dtype}),
        optimizer_(*backend_, arena_, sharding_, settings) {
    sharding_.zero_state();
    optimizer_.zero_state();
  }

  int parameters() const { return static_cast<int>(set_.parameters().size()); }
  const Parameter& parameter(int i) const { return set_[i]; }
  // A parameter's elements in the flat buffers, or in its bucket's range of them.
  Tensor in(const Tensor& flat, int i) const {
    return flat.rows(set_[i].offset, set_[i].shape.elements());
  }
  Tensor in_bucket(const Tensor& flat, int i) const {
    return flat.rows(set_[i].offset - set_.buckets()[bucket_of(i)].begin, set_[i].shape.elements());
  }
  std::size_t bucket_of(int i) const { return static_cast<std::size_t>(set_[i].bucket); }
  Tensor weights(int i) const { return in(sharding_.weights(), i); }
  Tensor gradients(int i) const { return in(sharding_.gradients(), i); }
  // With one rule and one rank, there is one segment per bucket.
  const StateRange& segment(int i) const { return optimizer_.state().segments()[bucket_of(i)]; }
  Tensor master(int i) const { return in_bucket(optimizer_.state().master(segment(i)), i); }
  Tensor moment1(int i) const { return in_bucket(optimizer_.state().slot(segment(i), 0), i); }
  Tensor moment2(int i) const { return in_bucket(optimizer_.state().slot(segment(i), 1), i); }

  void write(const Tensor& x, const Values& values) {
    visit_float(x.dtype(), [&]<class T>() {
      std::vector<T> stored;
      for (const double value : values) stored.push_back(T(static_cast<Accumulator<T>>(value)));
      backend_->upload(x, stored.data());
    });
  }
  Values read(const Tensor& x) {
    Values values;
    visit_float(x.dtype(), [&]<class T>() {
      std::vector<T> stored(static_cast<std::size_t>(x.elements()));
      backend_->download(stored.data(), x);
      for (const T value : stored)
        values.push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
    });
    return values;
  }
  // Every byte of weights, master and moments.
  std::vector<std::byte> state() {
    std::vector<std::byte> all;
    const auto append = [&](const Tensor& x) {
      const std::size_t old = all.size();
      all.resize(old + x.bytes());
      backend_->download(all.data() + old, x);
    };
    append(sharding_.weights());
    const OptimizerState& state = optimizer_.state();
    EXPECT_EQ(state.segments().size(), set_.buckets().size());
    for (const StateRange& segment : state.segments())
      for (const Tensor& x :
           {state.master(segment), state.slot(segment, 0), state.slot(segment, 1)})
        append(x);
    return all;
  }

  std::unique_ptr<Backend> backend_;
  ParameterSet set_;
  Arena arena_;
  Groups groups_;
  Sharding sharding_;
  Optimizer optimizer_;
};

// Loshchilov and Hutter's algorithm for one parameter.
struct Reference {
  struct State {
    Values weight, first, second;
  };
  OptimizerSettings settings;
  std::vector<State> states;

  void step(const std::vector<Values>& gradients, const std::vector<bool>& is_matrix, double t,
            double lr) {
    double squares = 0;
    for (const Values& gradient : gradients)
      for (const double g : gradient) squares += g * g;
    const double norm = std::sqrt(squares);
    const double clip = settings.clip > 0 && norm > settings.clip ? settings.clip / norm : 1.0;
    for (std::size_t p = 0; p < states.size(); ++p) {
      State& s = states[p];
      const double decay = is_matrix[p] ? settings.weight_decay : 0.0;
      for (std::size_t i = 0; i < s.weight.size(); ++i) {
        const double g = gradients[p][i] * clip;
        s.first[i] = settings.beta1 * s.first[i] + (1 - settings.beta1) * g;
        s.second[i] = settings.beta2 * s.second[i] + (1 - settings.beta2) * g * g;
        const double m = s.first[i] / (1 - std::pow(settings.beta1, t));
        const double v = s.second[i] / (1 - std::pow(settings.beta2, t));
        s.weight[i] -= lr * (m / (std::sqrt(v) + settings.eps) + decay * s.weight[i]);
      }
    }
  }
};

double rounded(double value, DType dtype) {
  double result = 0;
  visit_float(dtype, [&]<class T>() {
    result =
        static_cast<double>(static_cast<Accumulator<T>>(T(static_cast<Accumulator<T>>(value))));
  });
  return result;
}

struct OptimizerCase {
  Family family;
  DType dtype;
  double clip;
  double weight_decay;
  double loss_scale;
  DType moments = DType::F32;
};

class OptimizerTest : public testing::TestWithParam<OptimizerCase> {
 protected:
  OptimizerTest()
      : settings_{.beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = 1e-8,
                  .weight_decay = GetParam().weight_decay,
                  .clip = GetParam().clip,
                  .moments = GetParam().moments},
        bench_(GetParam().family, GetParam().dtype, settings_),
        reference_{settings_, {}} {
    for (int i = 0; i < bench_.parameters(); ++i) {
      const std::int64_t n = bench_.parameter(i).shape.elements();
      const auto zeros = Values(static_cast<std::size_t>(n), 0.0);
      reference_.states.push_back({normal(n, 0.5), zeros, zeros});
      is_matrix_.push_back(bench_.parameter(i).shape.rank() == 2);
      bench_.write(bench_.weights(i), reference_.states.back().weight);
      bench_.write(bench_.master(i), reference_.states.back().weight);
    }
  }

  Values normal(std::int64_t count, double deviation) {
    std::normal_distribution<double> distribution(0.0, deviation);
    Values values;
    for (std::int64_t i = 0; i < count; ++i)
      values.push_back(rounded(distribution(random_), DType::F32));
    return values;
  }

  // Writes gradients as a backward computes them, of the scaled loss. Returns those of the unscaled
  // loss.
  std::vector<Values> write_gradients() {
    std::vector<Values> gradients;
    bench_.backend_->fill(bench_.sharding_.gradients(), 0.0);
    for (int i = 0; i < bench_.parameters(); ++i) {
      gradients.push_back(normal(bench_.parameter(i).shape.elements(), 0.1));
      Values scaled = gradients.back();
      for (double& g : scaled) g *= GetParam().loss_scale;  // a power of two: exact
      bench_.write(bench_.gradients(i), scaled);
    }
    return gradients;
  }

  // The reference continues from the stored moments, so that their rounding errors do not
  // accumulate.
  void take_moments() {
    for (int i = 0; i < bench_.parameters(); ++i) {
      Reference::State& state = reference_.states[static_cast<std::size_t>(i)];
      state.first = bench_.read(bench_.moment1(i));
      state.second = bench_.read(bench_.moment2(i));
    }
  }

  std::mt19937 random_{11};
  OptimizerSettings settings_;
  Bench bench_;
  Reference reference_;
  std::vector<bool> is_matrix_;
};

// Relative tolerance; `size` is the magnitude of terms that may cancel.
void expect_near(const Values& actual, const Values& expected, double tolerance, double size,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance * (size + std::abs(expected[i])))
        << what << " at " << i;
}

TEST_P(OptimizerTest, SeveralStepsFollowTheReference) {
  const double tolerance = GetParam().dtype == DType::F64 ? 1e-13 : 2e-6;
  const double rounding = GetParam().moments == DType::BF16 ? 0x1p-8 : tolerance;
  for (std::int64_t step = 1; step <= 6; ++step) {
    const double lr = 0.02 / static_cast<double>(step);
    const std::vector<Values> gradients = write_gradients();
    reference_.step(gradients, is_matrix_, static_cast<double>(step), lr);
    bench_.optimizer_.step(step, lr, 1.0 / GetParam().loss_scale);
    for (int i = 0; i < bench_.parameters(); ++i) {
      const Reference::State& expected = reference_.states[static_cast<std::size_t>(i)];
      const std::string& name = bench_.parameter(i).name;
      const Values master = bench_.read(bench_.master(i));
      expect_near(master, expected.weight, tolerance, 1.0, name + " weight");
      expect_near(bench_.read(bench_.moment1(i)), expected.first, rounding, 0.01, name + " first");
      expect_near(bench_.read(bench_.moment2(i)), expected.second, rounding, 1e-6,
                  name + " second");
      Values stored = master;
      for (double& value : stored) value = rounded(value, GetParam().dtype);
      ASSERT_EQ(bench_.read(bench_.weights(i)), stored) << name << ": the rounded master";
    }
    if (GetParam().moments == DType::BF16) take_moments();
  }
}

TEST_P(OptimizerTest, TheNormIsThatOfAllGradients) {
  double squares = 0;
  for (const Values& gradient : write_gradients())
    for (const double g : gradient)
      squares += g * g * GetParam().loss_scale * GetParam().loss_scale;
  bench_.optimizer_.step(1, 0.01, 1.0 / GetParam().loss_scale);
  EXPECT_NEAR(bench_.read(bench_.optimizer_.squared_norm())[0] / squares, 1.0, 1e-6);
}

TEST_P(OptimizerTest, AGradientThatIsNotFiniteChangesNothing) {
  write_gradients();
  bench_.optimizer_.step(1, 0.01, 1.0 / GetParam().loss_scale);
  const auto before = bench_.state();
  for (const double bad :
       {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)})
    for (const int parameter : {0, bench_.parameters() / 2, bench_.parameters() - 1}) {
      write_gradients();
      bench_.write(bench_.gradients(parameter).rows(1, 1), {bad});
      bench_.optimizer_.step(2, 0.01, 1.0 / GetParam().loss_scale);
      EXPECT_EQ(bench_.state(), before) << bad << " in " << bench_.parameter(parameter).name;
      EXPECT_FALSE(std::isfinite(bench_.read(bench_.optimizer_.squared_norm())[0]));
    }
  write_gradients();
  bench_.optimizer_.step(2, 0.01, 1.0 / GetParam().loss_scale);
  EXPECT_NE(bench_.state(), before) << "the next good step changes them";
}

std::vector<OptimizerCase> all_cases() {
  std::vector<OptimizerCase> cases;
  for (const Family family : {Family::Llama, Family::Gpt2, Family::Bloom})
    for (const DType dtype : {DType::F64, DType::F32, DType::BF16, DType::F16}) {
      const double scale = dtype == DType::F16 ? 1024.0 : 1.0;
      cases.push_back(
          {family, dtype, 0.5, 0.1, scale});  // far below the norm of some hundred gradients of 0.1
      cases.push_back({family, dtype, 100.0, 0.0, scale});  // far above
      cases.push_back({family, dtype, 0.0, 0.3, scale});    // no clipping
      if (dtype != DType::F64) cases.push_back({family, dtype, 0.5, 0.1, scale, DType::BF16});
    }
  return cases;
}
std::string case_name(const testing::TestParamInfo<OptimizerCase>& info) {
  return std::string(to_string(info.param.family)) + "_" +
         std::string(to_string(info.param.dtype)) +
         (info.param.clip == 0.5 ? "_clipped"
          : info.param.clip == 0 ? "_unclipped"
                                 : "_below_the_limit") +
         (info.param.moments == DType::BF16 ? "_bf16_moments" : "");
}
INSTANTIATE_TEST_SUITE_P(Models, OptimizerTest, testing::ValuesIn(all_cases()), case_name);

TEST(OptimizerMemory, OnlySixteenBitWeightsHaveAMasterCopy) {
  EXPECT_FALSE(Bench(Family::Llama, DType::F32, {}).optimizer_.state().has_master());
  EXPECT_FALSE(Bench(Family::Llama, DType::F64, {}).optimizer_.state().has_master());
  Bench narrow(Family::Llama, DType::BF16, {});
  EXPECT_TRUE(narrow.optimizer_.state().has_master());
  EXPECT_EQ(narrow.optimizer_.state().master().dtype(), DType::F32);
  const auto n = static_cast<std::size_t>(narrow.set_.buffer_elements());
  EXPECT_EQ(narrow.arena_.bytes(Region::Optimizer), 12 * n + 8)
      << "master, two moments and two scalars";
  EXPECT_EQ(
      Bench(Family::Llama, DType::BF16, {.moments = DType::BF16}).arena_.bytes(Region::Optimizer),
      8 * n + 8);
}

// With a zero gradient, matrices shrink and vectors do not change.
TEST(OptimizerDecay, OnlyMatricesDecay) {
  Bench bench(Family::Gpt2, DType::F64, {.weight_decay = 0.5});
  bench.backend_->fill(bench.sharding_.weights(), 2.0);
  bench.optimizer_.step(1, 0.1, 1.0);
  bool matrix = false, vector = false;
  for (int i = 0; i < bench.parameters(); ++i) {
    const bool decays = bench.parameter(i).shape.rank() == 2;
    (decays ? matrix : vector) = true;
    for (const double value : bench.read(bench.weights(i)))
      ASSERT_DOUBLE_EQ(value, decays ? 1.9 : 2.0) << bench.parameter(i).name;
  }
  EXPECT_TRUE(matrix && vector);
}

// GPT-2 has learned positions and a tied head. Llama's head is a matrix of its own, which decays.
TEST(OptimizerDecay, EmbeddingsMayBeExempt) {
  for (const Family family : {Family::Gpt2, Family::Llama}) {
    Bench bench(family, DType::F64, {.weight_decay = 0.5, .decay_embeddings = false});
    bench.backend_->fill(bench.sharding_.weights(), 2.0);
    bench.optimizer_.step(1, 0.1, 1.0);
    int exempt = 0;
    for (int i = 0; i < bench.parameters(); ++i) {
      const std::string& name = bench.parameter(i).name;
      const bool embeds = name.ends_with("wte.weight") || name.ends_with("wpe.weight") ||
                          name.ends_with("embed_tokens.weight");
      exempt += embeds;
      const bool decays = bench.parameter(i).shape.rank() == 2 && !embeds;
      for (const double value : bench.read(bench.weights(i)))
        ASSERT_DOUBLE_EQ(value, decays ? 1.9 : 2.0) << name;
    }
    EXPECT_EQ(exempt, family == Family::Gpt2 ? 2 : 1);
  }
}

}  // namespace
}  // namespace kintsugi
