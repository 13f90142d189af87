// Scoring against PyTorch's losses, and generation against scoring.
#include "serve/inference_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "model/model_test_util.h"
#include "support/errors.h"
#include "support/loaded_model.h"
#include "support/paths.h"
#include "support/temporary_directory.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

const fs::path kData = test_data_directory();
constexpr std::int32_t kVocabulary = 67, kEndOfText = 2;
constexpr SamplingOptions kGreedy{.temperature = 0};
using Loaded = LoadedModel;

template <class T>
std::vector<T> read_entry(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(*file.find(name));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// ---- scoring

struct ScoreCase {
  const char* directory;
  const char* expected;
  DType precision;
  double tolerance;
};

class ScoreTest : public testing::TestWithParam<ScoreCase> {};

TEST_P(ScoreTest, LogProbabilitiesAreThoseOfPyTorch) {
  const SafetensorsFile expected(kData / GetParam().expected / "expected.safetensors");
  const auto ids = read_entry<std::int32_t>(expected, "input_ids");
  const auto losses = read_entry<float>(expected, "losses");
  const auto sequences = static_cast<std::size_t>(expected.find("input_ids")->shape[0]);
  const std::size_t length = ids.size() / sequences;
  ASSERT_EQ(losses.size(), sequences * (length - 1));
  Loaded loaded(kData / GetParam().directory, GetParam().precision);
  for (std::size_t s = 0; s < sequences; ++s) {
    const Tokens text(ids.begin() + static_cast<std::ptrdiff_t>(s * length),
                      ids.begin() + static_cast<std::ptrdiff_t>((s + 1) * length));
    const std::vector<double> scores = loaded.log_probabilities(text);
    ASSERT_EQ(scores.size(), length - 1);
    for (std::size_t i = 0; i + 1 < length; ++i)
      EXPECT_NEAR(scores[i], -static_cast<double>(losses[s * (length - 1) + i]),
                  GetParam().tolerance)
          << s << ", " << i;
  }
}

std::vector<ScoreCase> score_cases() {
  std::vector<ScoreCase> cases;
  for (const char* name :
       {"gpt2", "llama", "llama2", "llama-tied", "qwen2", "qwen3", "bloom", "bloom-6heads"})
    for (const DType precision : {DType::F32, DType::F64})
      cases.push_back({name, name, precision, 1e-4});
  cases.push_back({"llama-sharded", "llama", DType::F32, 1e-4});
  // Weights with 8 and 11 bits of mantissa.
  cases.push_back({"llama-bf16", "llama", DType::F32, 0.1});
  cases.push_back({"llama-fp16", "llama", DType::F32, 0.01});
  cases.push_back({"llama-bf16", "llama", DType::BF16, 0.3});
  cases.push_back({"llama-fp16", "llama", DType::F16, 0.03});
  return cases;
}
std::string score_name(const testing::TestParamInfo<ScoreCase>& info) {
  std::string name =
      std::string(info.param.directory) + "_" + std::string(to_string(info.param.precision));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Families, ScoreTest, testing::ValuesIn(score_cases()), score_name);

TEST(Score, TheNextTokensProbabilitiesAddUpToOne) {
  Loaded loaded(kData / "qwen3", DType::F64);
  double total = 0;
  for (const float value : loaded.next_log_probabilities({5, 9, 33}))
    total += std::exp(static_cast<double>(value));
  EXPECT_NEAR(total, 1.0, 1e-6);
}

TEST(Score, TokensDependOnlyOnThoseBefore) {
  Loaded loaded(kData / "llama");
  const Tokens text = {1, 5, 9, 33, 60, 7, 7, 12};
  const auto whole = loaded.log_probabilities(text);
  for (std::size_t n = 1; n <= text.size(); ++n) {
    const auto part = loaded.log_probabilities(
        Tokens(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n)));
    ASSERT_EQ(part.size(), n - 1);
    for (std::size_t i = 0; i < part.size(); ++i) EXPECT_NEAR(part[i], whole[i], 1e-5);
  }
}

TEST(Score, RefusesTokensThatAreNone) {
  Loaded loaded(kData / "gpt2");
  const auto score = [&](const Tokens& text) {
    return user_error_of([&] { loaded.log_probabilities(text); });
  };
  EXPECT_THAT(score({}), HasSubstr("at least one token"));
  EXPECT_THAT(score({1, 67}), AllOf(HasSubstr("token id 67"), HasSubstr("67")));
  EXPECT_THAT(score({-1, 3}), HasSubstr("token id -1"));
  EXPECT_THAT(score(Tokens(66, 3)), AllOf(HasSubstr("65 tokens"), HasSubstr("64 positions")));
  EXPECT_EQ(loaded.log_probabilities(Tokens(65, 3)).size(), 64u)
      << "the last token needs no position";
}

TEST(Score, ADirectoryWithoutAModelIsNamed) {
  const TemporaryDirectory empty;
  EXPECT_THAT(user_error_of([&] { Loaded(empty.path()); }), HasSubstr(empty.path().string()));
  fs::copy_file(kData / "llama" / "config.json", empty / "config.json");
  EXPECT_THAT(user_error_of([&] { Loaded(empty.path()); }), HasSubstr(empty.path().string()));
}

// ---- generation

// Every token must be the most likely one according to full forwards over the whole text. An early
// end must come from the model's end-of-text token.
void expect_greedy(Loaded& loaded, Tokens text, const Tokens& generated, std::size_t asked) {
  for (std::size_t i = 0; i <= generated.size() && i < asked; ++i) {
    const std::int32_t chosen = i < generated.size() ? generated[i] : kEndOfText;
    const auto scores = loaded.next_log_probabilities(text);
    const float best = *std::max_element(scores.begin(), scores.end());
    ASSERT_GE(scores[static_cast<std::size_t>(chosen)], best - 1e-4f)
        << "token " << i << " is " << chosen;
    text.push_back(chosen);
  }
}

class GenerateTest : public testing::TestWithParam<const char*> {};

TEST_P(GenerateTest, GreedyTokensAreTheMostLikelyOnes) {
  Loaded loaded(kData / GetParam());
  std::size_t total = 0;
  for (const Tokens& prompt : {Tokens{7}, Tokens{1, 5, 9, 33, 60, 7, 7, 12, 40}}) {
    const Tokens generated = loaded.generate(prompt, 10);
    expect_greedy(loaded, prompt, generated, 10);
    total += generated.size();
  }
  EXPECT_GT(total, 8u) << "the model falls silent at once: nothing was tested";
}

// Draws are numbered by their position in the text, so stopping and continuing changes nothing: the
// cache is recomputed from the longer prompt.
void expect_continuation(Loaded& loaded, const Tokens& prompt, std::size_t count) {
  SamplingOptions options{.temperature = 1.3, .top_k = 40, .top_p = 0.98, .seed = 21};
  Tokens whole;
  for (; whole.size() <= 5 && options.seed < 40;
       ++options.seed)  // a seed whose text is long enough
    whole = loaded.generate(prompt, static_cast<std::int64_t>(count), options);
  options.seed -= 1;
  ASSERT_GT(whole.size(), 5u);
  for (std::size_t cut = 1; cut < whole.size(); ++cut) {
    Tokens longer = prompt;
    longer.insert(longer.end(), whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut));
    const Tokens rest = loaded.generate(longer, static_cast<std::int64_t>(count - cut), options);
    EXPECT_EQ(rest, Tokens(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end())) << cut;
  }
}

TEST_P(GenerateTest, AContinuedTextIsTheSameText) {
  Loaded loaded(kData / GetParam());
  expect_continuation(loaded, {3, 50, 11}, 20);
}

INSTANTIATE_TEST_SUITE_P(Families, GenerateTest,
                         testing::Values("gpt2", "llama", "llama2", "llama-tied", "qwen2", "qwen3",
                                         "bloom", "bloom-6heads"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

Tokens random_tokens(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % kVocabulary);
  return tokens;
}

// The gpt2 fixture with a longer position table.
void write_long_gpt2(const TemporaryDirectory& directory, std::int64_t positions) {
  std::ifstream file(kData / "gpt2" / "config.json");
  auto config = nlohmann::json::parse(file);
  config["n_positions"] = positions;
  directory.write("config.json", config.dump());
  const SafetensorsFile source(kData / "gpt2" / "model.safetensors");
  const std::string table = "transformer.wpe.weight";
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const SafetensorsEntry& entry : source.entries()) {
    Shape shape;
    for (const std::int64_t extent : entry.shape) shape.append(extent);
    if (entry.name == table) shape[0] = positions;
    tensors.push_back({entry.name, DType::F32, shape});
  }
  SafetensorsWriter writer(directory / "model.safetensors", tensors);
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0.0f, 0.15f);
  for (const auto& tensor : tensors) {
    if (tensor.name != table) {
      const auto bytes = source.bytes(*source.find(tensor.name));
      writer.append(tensor.name, bytes.data(), bytes.size());
      continue;
    }
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
    for (float& value : values) value = normal(random);
    writer.append(table, values.data(), values.size() * sizeof(float));
  }
  writer.finish();
}

// Prompts are processed in chunks of 256 tokens: lengths around the end of the first and second.
TEST(GenerateLong, PromptsLongerThanOneForwardAreReadTheSame) {
  const TemporaryDirectory directory;
  write_long_gpt2(directory, 600);
  for (const fs::path& path :
       {kData / "llama", kData / "bloom", kData / "qwen3", directory.path()}) {
    SCOPED_TRACE(path.string());
    Loaded loaded(path);
    for (const std::size_t length : {251, 508})
      expect_continuation(loaded, random_tokens(length, 8), 10);
    const Tokens prompt = random_tokens(515, 3);
    expect_greedy(loaded, prompt, loaded.generate(prompt, 1), 1);
  }
}

TEST(Generate, TheSameSeedGivesTheSameText) {
  Loaded loaded(kData / "llama");
  const auto text = [&](std::uint64_t seed) {
    return loaded.generate({5, 6}, 30,
                           {.temperature = 1.5, .top_k = 0, .top_p = 1.0, .seed = seed});
  };
  const Tokens first = text(1);
  EXPECT_EQ(text(1), first);
  EXPECT_EQ(Loaded(kData / "llama").generate({5, 6}, 30, {.temperature = 1.5, .seed = 1}), first)
      << "in a new process, too";
  int same = 0;
  for (std::uint64_t seed = 2; seed < 12; ++seed) same += text(seed) == first;
  EXPECT_EQ(same, 0);
}

TEST(Generate, EndsWhenAskedTo) {
  Loaded loaded(kData / "llama");
  const Tokens four = loaded.generate({7}, 4);
  ASSERT_EQ(four.size(), 4u);
  Tokens seen;
  loaded.engine.submit({.prompt = {7}, .max_tokens = 100, .sampling = kGreedy},
                       {.on_token = [&](const SampledToken& token) {
                         seen.push_back(token.id);
                         return seen.size() < 3;
                       }});
  loaded.engine.run();
  EXPECT_EQ(seen, Tokens(four.begin(), four.begin() + 3));
}

TEST(Generate, EndsAtTheEndOfText) {
  const Tokens whole = Loaded(kData / "llama").generate({7}, 4);
  ASSERT_EQ(whole.size(), 4u);
  const TemporaryDirectory directory;
  std::ifstream file(kData / "llama" / "config.json");
  auto config = nlohmann::json::parse(file);
  config["eos_token_id"] = whole[2];
  directory.write("config.json", config.dump());
  fs::copy_file(kData / "llama" / "model.safetensors", directory / "model.safetensors");
  const auto first = std::find(whole.begin(), whole.end(), whole[2]);
  EXPECT_EQ(Loaded(directory.path()).generate({7}, 4), Tokens(whole.begin(), first))
      << "the end itself is no text";
}

TEST(Generate, RefusesPromptsThatAreNone) {
  Loaded loaded(kData / "gpt2");
  const auto error = [&](const Tokens& prompt, std::int64_t count) {
    return user_error_of([&] { loaded.generate(prompt, count); });
  };
  EXPECT_THAT(error({}, 5), HasSubstr("prompt is empty"));
  EXPECT_THAT(error({3, 67}, 5), AllOf(HasSubstr("token id 67"), HasSubstr("vocabulary of 67")));
  EXPECT_THAT(error({-5}, 5), HasSubstr("token id -5"));
  EXPECT_THAT(error(Tokens(60, 3), 20), AllOf(HasSubstr("79 tokens"), HasSubstr("64 positions")));
  EXPECT_THAT(error(Tokens(70, 3), 1), HasSubstr("64 positions"));
  EXPECT_NO_THROW(loaded.generate(Tokens(60, 3), 4));
}

// ---- memory

// Counts allocations, and reports the available memory that the test sets.
class CountingBackend : public CpuBackend {
 public:
  CountingBackend() : CpuBackend(1) {}
  void* allocate(std::size_t bytes) override {
    live += bytes;
    peak = std::max(peak, live);
    return CpuBackend::allocate(bytes);
  }
  void release(void* memory, std::size_t bytes) noexcept override {
    live -= bytes;
    CpuBackend::release(memory, bytes);
  }
  std::size_t available_bytes() const override { return available; }
  std::size_t live = 0, peak = 0, available = 0;
};

TEST(ModelMemoryTest, ThePlanIsWhatIsAllocated) {
  for (const bool deterministic : {false, true}) {
    CountingBackend backend;
    LocalCommunicator alone("tensor", &backend);
    const auto load = [&](std::size_t available) {
      backend.available = available;
      backend.peak = backend.live;
      const InferenceEngine engine(backend, alone, kData / "llama",
                                   {.max_length = 200,
                                    .max_sequences = 4,
                                    .cache_tokens = 640,
                                    .deterministic = deterministic});
      return backend.live;
    };
    const std::size_t enough = load(std::size_t{1} << 30);
    EXPECT_NO_THROW(load(enough));
    EXPECT_THAT(user_error_of([&] { load(enough - 1); }),
                AllOf(HasSubstr("for the weights"), HasSubstr("for keys and values"),
                      HasSubstr("200 tokens, but"), HasSubstr("--precision bf16")));
  }
}

TEST(ModelMemoryTest, TheCacheIsAsLargeAsMemoryAllows) {
  CountingBackend backend;
  LocalCommunicator alone("tensor", &backend);
  const auto cache = [&](std::size_t available) {
    backend.available = available;
    return InferenceEngine(backend, alone, kData / "llama", {.max_length = 200, .max_sequences = 4})
        .options()
        .cache_tokens;
  };
  EXPECT_EQ(cache(std::size_t{1} << 30), 4 * 208) << "whole pages of 16";
  EXPECT_EQ(user_error_of([&] { cache(1 << 10); }).substr(0, 10), "this needs");
}

}  // namespace
}  // namespace kintsugi
