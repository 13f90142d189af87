// Logits of tokens that are computed in any pieces, from caches in pages, against the plain forward
// over the whole sequence.
#include "serve/inference_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "backend/backends.h"
#include "model/initialize.h"
#include "model/whole_model.h"
#include "serve/page_pool.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/thread_world.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

Ids some_ids(std::size_t count, std::mt19937& random, std::int64_t vocabulary) {
  Ids ids(count);
  for (std::int32_t& id : ids)
    id = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  return ids;
}

// The logits of every token of a sequence, by the forward that training uses.
std::vector<std::vector<double>> plain_logits(Backend& device, const fs::path& directory,
                                              DType precision, const Ids& ids) {
  Backend* const backend = &device;
  const ModelConfig config = read_hf_config(directory / "config.json");
  const ParameterSet set(config);
  Arena arena(*backend);
  const ParameterStore store(set, arena, precision, false);
  load_parameters(*backend, store, SafetensorsModel(directory), config);
  const std::int64_t n = std::ssize(ids);
  WholeModel model(*backend, arena, store, config, {.length = n, .training = false});
  model.prepare();
  Ids positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const Tensor on_device = arena.allocate(Region::Workspace, "batch", DType::I32, {2, n});
  const MicroBatch batch{.sequences = 1,
                         .length = n,
                         .ids = on_device.rows(0, 1).view({n}),
                         .positions = on_device.rows(1, 1).view({n})};
  backend->upload(batch.ids, ids.data());
  backend->upload(batch.positions, positions.data());
  const Tensor logits = model.all_logits(batch);
  std::vector<std::vector<double>> rows;
  visit_float(precision, [&]<class T>() {
    for (std::int64_t i = 0; i < n; ++i) {
      std::vector<T> row(static_cast<std::size_t>(config.vocab_size));
      backend->download(row.data(), logits.rows(i, 1));
      rows.emplace_back();
      for (const T value : row)
        rows.back().push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
    }
  });
  return rows;
}

// A sequence that is computed piece by piece.
struct Piecewise {
  Ids ids;
  std::vector<std::vector<double>> expected = {};
  std::int32_t slot = 0;
  Ids pages = {};
  std::int64_t computed = 0;
};

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// Computes sequences together, in random pieces and orders, and returns the largest error of the
// logits of the last token of each piece.
double largest_error(InferenceModel& model, std::vector<Piecewise>& sequences,
                     std::mt19937& random) {
  double largest = 0;
  for (;;) {
    std::vector<StepSequence> step;
    std::vector<Piecewise*> of_step;
    std::int64_t left = model.options().step_tokens;
    for (Piecewise& s : sequences) {
      const std::int64_t rest = std::ssize(s.ids) - s.computed;
      if (rest == 0 || left == 0 || random() % 4 == 0) continue;
      const std::int64_t count =
          random() % 2 == 0 ? 1 : 1 + static_cast<std::int64_t>(random()) % std::min(rest, left);
      left -= count;
      const auto first = s.ids.begin() + s.computed;
      step.push_back({.tokens = {first, first + count},
                      .position = s.computed,
                      .slot = s.slot,
                      .pages = s.pages,
                      .targets = {-1},
                      .largest = 3,
                      .whole = true});
      of_step.push_back(&s);
    }
    if (std::all_of(sequences.begin(), sequences.end(),
                    [](const Piecewise& s) { return s.computed == std::ssize(s.ids); }))
      return largest;
    if (step.empty()) continue;
    const auto results = model.compute(step);
    for (std::size_t i = 0; i < step.size(); ++i) {
      Piecewise& s = *of_step[i];
      s.computed += std::ssize(step[i].tokens);
      const auto& expected = s.expected[static_cast<std::size_t>(s.computed - 1)];
      const ReadLogits& read = results[i].front();
      largest = std::max(largest, difference(read.all, expected));
      EXPECT_EQ(read.largest.front().logit, *std::max_element(read.all.begin(), read.all.end()));
      double sum = 0;
      for (const double logit : read.all) sum += std::exp(logit);
      EXPECT_NEAR(read.log_sum, std::log(sum), 1e-5);
    }
  }
}

struct LogitsCase {
  TestBackend backend;
  std::string directory;
  DType precision = DType::F32;
  double tolerance = 1e-5;
  bool deterministic = false;
};

class PagedLogits : public testing::TestWithParam<LogitsCase> {};

TEST_P(PagedLogits, AreThoseOfThePlainForward) {
  const fs::path directory = fs::path(test_data_directory()) / GetParam().directory;
  std::mt19937 random(7);
  const auto backend = GetParam().backend.make();
  LocalCommunicator alone("tensor", backend.get());
  InferenceModel model(*backend, alone, directory,
                       {.precision = GetParam().precision,
                        .max_length = 60,
                        .max_sequences = 5,
                        .step_tokens = 23,
                        .deterministic = GetParam().deterministic});
  // The pages of a sequence lie anywhere.
  Ids pages(static_cast<std::size_t>(model.pages()));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  std::vector<Piecewise> sequences;
  for (std::int32_t slot = 0; slot < 5; ++slot) {
    Piecewise s{.ids = some_ids(20 + random() % 40, random, model.config().vocab_size),
                .slot = slot};
    s.expected = plain_logits(*backend, directory, GetParam().precision, s.ids);
    for (int i = 0; i < 4 && !pages.empty(); ++i, pages.pop_back()) s.pages.push_back(pages.back());
    sequences.push_back(std::move(s));
  }
  EXPECT_LT(largest_error(model, sequences, random), GetParam().tolerance);
  // A sequence with the same beginning uses the pages of another, and its own from there on.
  if (model.pages() == 0) return;
  Piecewise& first = sequences.front();
  Piecewise shared{.ids = {first.ids.begin(), first.ids.begin() + 16}, .slot = 1, .computed = 16};
  for (const std::int32_t id : some_ids(20, random, model.config().vocab_size))
    shared.ids.push_back(id);
  shared.expected = plain_logits(*backend, directory, GetParam().precision, shared.ids);
  shared.pages = sequences[1].pages;
  shared.pages[0] = first.pages[0];
  std::vector<Piecewise> next = {shared};
  EXPECT_LT(largest_error(model, next, random), GetParam().tolerance);
}

std::vector<LogitsCase> logits_cases() {
  std::vector<LogitsCase> cases;
  for (const TestBackend& backend : backends()) {
    for (const char* name : {"gpt2", "llama", "llama2", "llama-tied", "llama-yarn", "qwen2",
                             "qwen3", "bloom", "bloom-6heads", "olmo2", "olmo3", "retnet",
                             "mixtral", "olmoe", "qwen3-moe", "dots1", "glm4-moe", "deepseek-v3"}) {
      cases.push_back({backend, name});
      cases.push_back({backend, name, DType::F64, 1e-6});
    }
    cases.push_back({backend, "llama", DType::BF16, 0.2});
    for (const char* name : {"llama", "retnet"})
      cases.push_back({backend, name, DType::F32, 1e-5, true});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Families, PagedLogits, testing::ValuesIn(logits_cases()),
                         [](const auto& info) {
                           std::string name = info.param.backend.name + "_" + info.param.directory +
                                              "_" + std::string(to_string(info.param.precision)) +
                                              (info.param.deterministic ? "_fixed" : "");
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(InferenceModelTest, TensorRanksComputeTheSameLogits) {
  for (const char* name : {"llama", "gpt2", "bloom", "qwen3", "olmo2", "retnet"}) {
    const fs::path directory = fs::path(test_data_directory()) / name;
    run_ranks(2, [&](World& world) {
      const auto backend = make_cpu_backend(1);
      const auto tensor = world.split("tensor", 0, world.rank());
      InferenceModel model(*backend, *tensor, directory,
                           {.max_length = 60, .max_sequences = 2, .step_tokens = 16});
      if (world.rank() > 0) return model.follow();
      std::mt19937 random(3);
      std::vector<Piecewise> sequences(2);
      for (std::int32_t slot = 0; slot < 2; ++slot) {
        Piecewise& s = sequences[static_cast<std::size_t>(slot)];
        s.ids = some_ids(40, random, model.config().vocab_size);
        s.slot = slot;
        s.expected = plain_logits(*backend, directory, DType::F32, s.ids);
        for (std::int32_t i = 0; i < 3; ++i) s.pages.push_back(slot * 3 + i);
      }
      EXPECT_LT(largest_error(model, sequences, random), 1e-5) << name;
      model.end();
    });
  }
}

TEST(InferenceModelTest, RanksThatCannotShareAModelAreRefused) {
  run_ranks(3, [&](World& world) {
    const auto backend = make_cpu_backend(1);
    const auto tensor = world.split("tensor", 0, world.rank());
    EXPECT_THAT(user_error_of([&] {
                  InferenceModel(*backend, *tensor, fs::path(test_data_directory()) / "llama", {});
                }),
                testing::HasSubstr("is 3, which must divide the model's"));
  });
}

}  // namespace
}  // namespace kintsugi
