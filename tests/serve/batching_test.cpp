// Many requests at the same time give what each gives alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "backend/backends.h"
#include "comm/communicator.h"
#include "serve/engine_thread.h"
#include "serve/page_pool.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"
#include "support/thread_world.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

fs::path model_of(const std::string& name) { return fs::path(test_data_directory()) / name; }

struct Answer {
  Ids ids;
  std::vector<double> logprobs, scores;
  std::optional<InferenceEnd> end;
  std::string error;
};

InferenceListener listener_of(Answer& answer) {
  return {.on_scores =
              [&](const std::vector<SampledToken>& scores) {
                for (const SampledToken& token : scores) answer.scores.push_back(*token.logprob);
              },
          .on_token =
              [&](const SampledToken& token) {
                answer.ids.push_back(token.id);
                if (token.logprob) answer.logprobs.push_back(*token.logprob);
                return true;
              },
          .on_end =
              [&](InferenceEnd end, const std::string& error) {
                EXPECT_FALSE(answer.end) << "ended twice";
                answer.end = end;
                answer.error = error;
              }};
}

// Requests of all kinds: prompts of 1 to 40 tokens, some scored, greedy and sampled.
std::vector<InferenceRequest> some_requests(std::size_t count) {
  std::mt19937 random(11);
  std::vector<InferenceRequest> requests;
  for (std::size_t i = 0; i < count; ++i) {
    InferenceRequest r;
    r.prompt.resize(1 + random() % 40);
    for (std::int32_t& id : r.prompt) id = static_cast<std::int32_t>(random() % 67);
    if (i % 3 == 2) r.prompt = requests[i - 1].prompt;  // the same beginning
    r.max_tokens = i % 4 == 3 ? 0 : 1 + static_cast<std::int64_t>(random() % 12);
    if (r.max_tokens == 0 || i % 5 == 0) r.score_from = 1;
    r.sampling = {.temperature = i % 2 == 0 ? 0.0 : 1.0, .seed = i, .logprobs = 2};
    if (i % 6 == 1) r.sampling.top_k = 5;
    if (i % 6 == 3) r.sampling.repetition_penalty = 1.3;
    requests.push_back(std::move(r));
  }
  return requests;
}

struct Outcome {
  std::vector<Answer> answers;
  InferenceCounters counters;
};

Outcome run_all(const fs::path& directory, const InferenceOptions& options,
                const std::vector<InferenceRequest>& requests,
                const TestBackend& device = backends().front()) {
  const auto backend = device.make();
  LocalCommunicator alone("tensor", backend.get());
  InferenceEngine engine(*backend, alone, directory, options);
  Outcome run;
  run.answers.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    engine.submit(requests[i], listener_of(run.answers[i]));
  engine.run();
  run.counters = engine.counters();
  EXPECT_EQ(run.counters.running + run.counters.waiting, 0);
  EXPECT_EQ(run.counters.cache_in_use, 0) << "all pages are free at the end";
  for (const Answer& answer : run.answers) EXPECT_TRUE(answer.end);
  return run;
}

void expect_same(const std::vector<Answer>& a, const std::vector<Answer>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(a[i].ids, b[i].ids);
    EXPECT_EQ(a[i].end, b[i].end);
    for (const auto member : {&Answer::logprobs, &Answer::scores}) {
      ASSERT_EQ((a[i].*member).size(), (b[i].*member).size());
      for (std::size_t j = 0; j < (a[i].*member).size(); ++j)
        EXPECT_NEAR((a[i].*member)[j], (b[i].*member)[j], tolerance) << j;
    }
  }
}

struct BatchingCase {
  TestBackend backend;
  std::string model;
};
class Batching : public testing::TestWithParam<BatchingCase> {
 protected:
  Outcome run(const InferenceOptions& options, const std::vector<InferenceRequest>& requests) {
    return run_all(model_of(GetParam().model), options, requests, GetParam().backend);
  }
};

// Bit for bit: with `deterministic`, nothing depends on what else is computed.
TEST_P(Batching, DeterministicResultsDependOnNothingElse) {
  const auto requests = some_requests(24);
  const InferenceOptions one{.max_length = 60,
                             .max_sequences = 1,
                             .step_tokens = 64,
                             .reuse_prefixes = false,
                             .deterministic = true};
  const Outcome alone = run(one, requests);
  for (const std::int64_t sequences : {3, 17}) {
    InferenceOptions many = one;
    many.max_sequences = sequences;
    many.reuse_prefixes = true;
    const Outcome together = run(many, requests);
    expect_same(alone.answers, together.answers, 0);
    EXPECT_LT(together.counters.steps, alone.counters.steps / 2);
  }
}

TEST_P(Batching, OtherwiseTheyDifferByRoundingOnly) {
  const auto requests = some_requests(24);
  const Outcome alone =
      run({.max_length = 60, .max_sequences = 1, .reuse_prefixes = false}, requests);
  const Outcome together = run({.max_length = 60, .max_sequences = 9, .step_tokens = 40}, requests);
  expect_same(alone.answers, together.answers, 2e-5);
}

std::vector<BatchingCase> batching_cases() {
  std::vector<BatchingCase> cases;
  for (const TestBackend& backend : backends())
    for (const char* name : {"gpt2", "llama", "qwen3", "bloom", "olmo3", "retnet", "mixtral",
                             "glm4-moe", "deepseek-v3"})
      cases.push_back({backend, name});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Families, Batching, testing::ValuesIn(batching_cases()),
                         [](const auto& info) {
                           std::string name = info.param.backend.name + "_" + info.param.model;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Prompts longer than the parts into which a GPU divides the keys, with common beginnings, divided
// differently by the steps of each run.
TEST(BatchingTest, DeterministicAlsoForLongPrompts) {
  std::vector<InferenceRequest> requests = some_requests(8);
  std::mt19937 random(4);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Ids beginning(240 + random() % 90);
    for (std::int32_t& id : beginning) id = static_cast<std::int32_t>(random() % 67);
    if (i % 2 == 1) beginning = requests[i - 1].prompt;
    requests[i].prompt = beginning;
    requests[i].prompt.push_back(static_cast<std::int32_t>(i));
  }
  const InferenceOptions one{
      .max_length = 400, .max_sequences = 1, .reuse_prefixes = false, .deterministic = true};
  InferenceOptions many = one;
  many.max_sequences = 5;
  many.reuse_prefixes = true;
  for (const TestBackend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    const Outcome alone = run_all(model_of("llama"), one, requests, backend);
    const Outcome together = run_all(model_of("llama"), many, requests, backend);
    expect_same(alone.answers, together.answers, 0);
  }
}

TEST(BatchingTest, ACacheThatIsTooSmallForAllMakesSomeWait) {
  const auto requests = some_requests(24);
  const InferenceOptions large{.max_length = 64, .max_sequences = 8, .deterministic = true};
  InferenceOptions small = large;
  small.cache_tokens = 96;
  const Outcome plenty = run_all(model_of("llama"), large, requests),
                little = run_all(model_of("llama"), small, requests);
  expect_same(plenty.answers, little.answers, 0);
  EXPECT_EQ(plenty.counters.preemptions, 0);
  EXPECT_GT(little.counters.preemptions, 0) << "nothing was tested";
}

// Log-probabilities are those of the model, whatever the sampling options are, and the same bits
// whether few logits are read or all.
TEST(BatchingTest, LogprobsAreTheLogSoftmax) {
  const auto backend = make_cpu_backend(1);
  LocalCommunicator alone("tensor", backend.get());
  InferenceEngine engine(*backend, alone, model_of("llama"),
                         {.max_length = 60, .max_sequences = 1});
  const auto first_token = [&](const SamplingOptions& options) {
    SampledToken result;
    engine.submit({.prompt = {5, 6, 7}, .max_tokens = 1, .sampling = options},
                  {.on_token = [&](const SampledToken& token) {
                    result = token;
                    return true;
                  }});
    engine.run();
    return result;
  };
  const SampledToken all = first_token({.seed = 3, .logprobs = 67});
  ASSERT_EQ(all.top.size(), 67u);
  double total = 0;
  for (const TokenLogprob& token : all.top) total += std::exp(token.logprob);
  EXPECT_NEAR(total, 1, 1e-6);
  int drawn = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const SampledToken few =
        first_token({.temperature = 1.5, .top_k = 6, .seed = seed, .logprobs = 4});
    if (few.top.empty()) continue;  // the text has ended
    ASSERT_EQ(few.top.size(), 4u);
    ++drawn;
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(few.top[i], all.top[i]);
    for (const TokenLogprob& token : all.top) {
      if (token.id == few.id) {
        EXPECT_EQ(token.logprob, *few.logprob);
      }
    }
  }
  EXPECT_GT(drawn, 2);
  EXPECT_FALSE(first_token({}).logprob);
  EXPECT_TRUE(first_token({.logprobs = 0}).logprob);
  EXPECT_TRUE(first_token({.logprobs = 0}).top.empty());
}

TEST(BatchingTest, SharedBeginningsAreComputedOnce) {
  std::vector<InferenceRequest> requests;
  std::mt19937 random(2);
  Ids context(50);
  for (std::int32_t& id : context) id = static_cast<std::int32_t>(random() % 67);
  for (std::int32_t choice = 0; choice < 4; ++choice) {
    InferenceRequest r{.prompt = context, .score_from = 50};
    r.prompt.insert(r.prompt.end(), {choice, choice + 3, choice + 9});
    requests.push_back(std::move(r));
  }
  const InferenceOptions options{.max_length = 64, .max_sequences = 1};
  const Outcome shared = run_all(model_of("llama"), options, requests);
  // 48 of the 50 tokens of the context are full pages; the first request computes them.
  EXPECT_EQ(shared.counters.reused_tokens, 3 * 48);
  EXPECT_EQ(shared.counters.prompt_tokens, 4 * 52 - 3 * 48) << "the last token is not read";
  InferenceOptions apart = options;
  apart.reuse_prefixes = false;
  const Outcome plain = run_all(model_of("llama"), apart, requests);
  EXPECT_EQ(plain.counters.reused_tokens, 0);
  expect_same(shared.answers, plain.answers, 1e-5);
}

TEST(BatchingTest, RequestsJoinAndLeaveBetweenSteps) {
  const auto backend = make_cpu_backend(1);
  LocalCommunicator alone("tensor", backend.get());
  InferenceEngine engine(*backend, alone, model_of("llama"),
                         {.max_length = 64, .max_sequences = 2});
  Answer endless, late, waits;
  const auto id = engine.submit(
      {.prompt = {3, 4}, .max_tokens = 60, .sampling = {.temperature = 0}}, listener_of(endless));
  engine.step();
  EXPECT_EQ(engine.counters().running, 1);
  engine.submit({.prompt = {5}, .max_tokens = 2, .sampling = {.temperature = 0}},
                listener_of(late));
  engine.submit({.prompt = {6}, .max_tokens = 1, .sampling = {.temperature = 0}},
                listener_of(waits));
  engine.step();
  EXPECT_EQ(engine.counters().running, 2);
  EXPECT_EQ(engine.counters().waiting, 1) << "two at a time";
  while (!waits.end) engine.step();
  EXPECT_EQ(late.ids.size(), 2u);
  EXPECT_FALSE(endless.end);
  engine.cancel(id);
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(endless.end, InferenceEnd::Stopped);
  EXPECT_EQ(engine.counters().cache_in_use, 0);
  engine.cancel(id);  // does nothing
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(engine.counters().cancelled, 1);
}

TEST(BatchingTest, TensorRanksGiveTheSameTexts) {
  const auto requests = some_requests(12);
  for (const char* name : {"llama", "gpt2", "retnet"}) {
    const InferenceOptions options{.max_length = 60, .max_sequences = 4, .step_tokens = 32};
    const Outcome alone = run_all(model_of(name), options, requests);
    std::vector<Answer> answers(requests.size());
    run_ranks(2, [&](World& world) {
      const auto backend = make_cpu_backend(1);
      const auto tensor = world.split("tensor", 0, world.rank());
      InferenceEngine engine(*backend, *tensor, model_of(name), options);
      if (world.rank() > 0) return engine.follow();
      for (std::size_t i = 0; i < requests.size(); ++i)
        engine.submit(requests[i], listener_of(answers[i]));
      engine.run();
    });
    SCOPED_TRACE(name);
    expect_same(alone.answers, answers, 2e-5);
  }
}

// A model whose logits are NaN for some tokens: one row of the embedding is NaN.
void write_broken_model(const TemporaryDirectory& directory, std::int32_t token) {
  fs::copy_file(model_of("llama") / "config.json", directory / "config.json");
  const SafetensorsFile source(model_of("llama") / "model.safetensors");
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const SafetensorsEntry& entry : source.entries()) {
    Shape shape;
    for (const std::int64_t extent : entry.shape) shape.append(extent);
    tensors.push_back({entry.name, DType::F32, shape});
  }
  SafetensorsWriter writer(directory / "model.safetensors", tensors);
  for (const auto& tensor : tensors) {
    const auto bytes = source.bytes(*source.find(tensor.name));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    const std::int64_t width = tensor.shape[tensor.shape.rank() - 1];
    if (tensor.name == "model.embed_tokens.weight")
      std::fill_n(values.begin() + token * width, width, std::nanf(""));
    writer.append(tensor.name, values.data(), values.size() * sizeof(float));
  }
  writer.finish();
}

TEST(BatchingTest, OneRequestFailsAlone) {
  const TemporaryDirectory directory;
  write_broken_model(directory, 13);
  std::vector<InferenceRequest> requests;
  for (const std::int32_t first : {5, 13, 6})
    requests.push_back({.prompt = {first, 4}, .max_tokens = 1, .sampling = {.temperature = 0}});
  requests.push_back({.prompt = {13, 4, 5}, .score_from = 1});
  const Outcome run = run_all(directory.path(), {.max_length = 16, .max_sequences = 4}, requests);
  EXPECT_EQ(run.answers[0].ids.size(), 1u);
  EXPECT_EQ(run.answers[2].ids.size(), 1u);
  for (const std::size_t i : {1u, 3u}) {
    EXPECT_EQ(run.answers[i].end, InferenceEnd::Failed);
    EXPECT_THAT(run.answers[i].error, testing::HasSubstr("not finite"));
  }
}

TEST(BatchingTest, RequestsThatCannotBeComputedAreRefused) {
  const auto backend = make_cpu_backend(1);
  LocalCommunicator alone("tensor", backend.get());
  InferenceEngine engine(*backend, alone, model_of("llama"),
                         {.max_length = 32, .max_sequences = 2});
  const auto error = [&](const InferenceRequest& request) {
    return user_error_of([&] { engine.submit(request, {}); });
  };
  EXPECT_THAT(error({.prompt = Ids(20, 1), .max_tokens = 14}),
              testing::AllOf(testing::HasSubstr("33 tokens"), testing::HasSubstr("up to 32")));
  EXPECT_NO_THROW(engine.submit({.prompt = Ids(20, 1), .max_tokens = 13}, {}));
  EXPECT_THAT(error({.prompt = {1, 2}, .score_from = 0}), testing::HasSubstr("first token"));
  engine.run();
  const auto small = [&] {
    InferenceEngine(*backend, alone, model_of("llama"), {.max_length = 320, .cache_tokens = 100});
  };
  EXPECT_THAT(user_error_of(small), testing::HasSubstr("--cache-tokens"));
}

// ---- the thread

TEST(EngineThreadTest, ManyThreadsGetTheirOwnAnswers) {
  const auto requests = some_requests(24);
  const InferenceOptions options{.max_length = 60, .max_sequences = 5, .deterministic = true};
  // The same number of threads: BLAS splits matmuls by it, and rounds differently.
  const TestBackend one_thread{"cpu", {DType::F32}, [] { return make_cpu_backend(1); }};
  const Outcome expected = run_all(model_of("llama"), options, requests, one_thread);
  const auto backend = one_thread.make();
  LocalCommunicator alone("tensor", backend.get());
  InferenceEngine engine(*backend, alone, model_of("llama"), options);
  std::vector<Answer> answers(requests.size());
  {
    EngineThread thread(engine);
    std::vector<std::thread> clients;
    for (std::size_t t = 0; t < 4; ++t)
      clients.emplace_back([&, t] {
        for (std::size_t i = t; i < requests.size(); i += 4)
          thread.submit(requests[i], listener_of(answers[i]));
      });
    for (std::thread& client : clients) client.join();
    thread.wait_until_idle();
    EXPECT_EQ(thread.counters().finished, std::ssize(requests));
  }
  expect_same(expected.answers, answers, 0);
}

TEST(EngineThreadTest, CancelledAndAbandonedRequestsEnd) {
  const auto backend = make_cpu_backend(1);
  LocalCommunicator alone("tensor", backend.get());
  InferenceEngine engine(*backend, alone, model_of("llama"),
                         {.max_length = 4096, .max_sequences = 2});
  std::vector<Answer> answers(4);
  {
    EngineThread thread(engine);
    const InferenceRequest endless{
        .prompt = {3}, .max_tokens = 4000, .sampling = {.temperature = 0}};
    const auto first = thread.submit(endless, listener_of(answers[0]));
    thread.submit(endless, listener_of(answers[1]));
    thread.submit(endless, listener_of(answers[2]));  // waits
    thread.cancel(first);
    EXPECT_THAT(user_error_of([&] { thread.submit({.prompt = {}}, {}); }),
                testing::HasSubstr("empty"));
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(answers[static_cast<std::size_t>(i)].end, InferenceEnd::Stopped);
}

}  // namespace
}  // namespace kintsugi
