// Mixtures of experts that are made from models without.
#include "model/files/merge.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "core/file.h"
#include "model/initialize.h"
#include "model/whole_model.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// The losses of some tokens in fp64.
std::vector<double> losses_in(const fs::path& directory) {
  constexpr std::int64_t sequences = 2, length = 11, tokens = sequences * length;
  const auto backend = make_cpu_backend(1);
  Arena arena(*backend);
  const ModelConfig config = read_model_directory(directory);
  const ParameterSet set(config);
  const ParameterStore store(set, arena, DType::F64, true);
  WholeModel model(*backend, arena, store, config, {.sequences = sequences, .length = length});
  model.prepare();
  load_parameters(*backend, store, SafetensorsModel(directory), config);
  std::vector<std::int32_t> ids(tokens), positions(tokens);
  for (std::int32_t i = 0; i < tokens; ++i) {
    ids[static_cast<std::size_t>(i)] = i * 7 % 19;
    positions[static_cast<std::size_t>(i)] = i % static_cast<std::int32_t>(length);
  }
  const Tensor loss = arena.allocate(Region::Workspace, "loss", DType::F64, {1});
  const auto put = [&](std::vector<std::int32_t>& x) {
    return Tensor(x.data(), DType::I32, {tokens});
  };
  model.evaluate({.sequences = sequences,
                  .length = length,
                  .ids = put(ids),
                  .targets = put(ids),
                  .positions = put(positions)},
                 loss);
  const double* const all = model.losses(tokens).as<double>();
  return {all, all + tokens};
}

TEST(Upcycle, MakesAMixtureThatComputesTheSame) {
  const TemporaryDirectory directory;
  for (const char* const name : {"llama", "qwen3", "llama-tied"}) {
    const fs::path from = fs::path(test_data_directory()) / name, to = directory / name;
    const WrittenModel written = upcycle_model(from, to, {.experts = 5, .chosen = 3, .seed = 4});
    const StoredModel mixture(to);
    EXPECT_EQ(written.tensors, mixture.names.size());
    EXPECT_EQ(mixture.config.experts->count, 5);
    EXPECT_EQ(mixture.config.experts->chosen, 3);
    const std::vector<double> before = losses_in(from), after = losses_in(to);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-12) << name;
  }
}

TEST(Upcycle, HasRoutersOfItsSeed) {
  const TemporaryDirectory directory;
  const auto weights_of = [&](const char* name, std::uint64_t seed) {
    upcycle_model(fs::path(test_data_directory()) / "llama", directory / name, {.seed = seed});
    return read_text_file(directory / name / "model.safetensors");
  };
  EXPECT_EQ(weights_of("a", 1), weights_of("b", 1));
  EXPECT_NE(weights_of("c", 2), weights_of("d", 3));
}

TEST(Upcycle, RefusesWhatItCannotMake) {
  const TemporaryDirectory directory;
  const auto error_of = [&](const char* name, const UpcycleOptions& options) {
    return user_error_of(
        [&] { upcycle_model(fs::path(test_data_directory()) / name, directory / "new", options); });
  };
  EXPECT_NE(error_of("gpt2", {}).find("is a gpt2 model, of which there is no mixture"),
            std::string::npos);
  EXPECT_EQ(error_of("llama", {.experts = 2, .chosen = 3}),
            "experts.chosen is 3, but there are 2 experts");
  EXPECT_FALSE(fs::exists(directory / "new"));
}

}  // namespace
}  // namespace kintsugi
