// The moving average of the weights (train.ema) against plain arithmetic.
#include <gtest/gtest.h>

#include <cstring>

#include "core/file.h"
#include "support/captured_log.h"
#include "support/parallel_run.h"
#include "support/small_run.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

Training averaged_training(DType precision) {
  Training training{.model = tiny_model("llama-tied", 2), .precision = precision};
  training.sequences = 8;
  training.length = 8;
  training.optimizer.ema = {.decay = 0.75, .every = 1};
  return training;
}

// All tensors of a model directory, in the numbering of the whole model.
std::vector<double> stored_elements(const fs::path& directory, const ModelConfig& config) {
  const ParameterSet whole(config);
  const SafetensorsModel files(directory);
  std::vector<double> all(static_cast<std::size_t>(whole.buffer_elements()), 0.0);
  for (const Parameter& parameter : whole.parameters()) {
    const auto found = files.find(parameter.name);
    EXPECT_TRUE(found) << parameter.name;
    visit_float(found.entry->dtype.value(), [&]<class T>() {
      std::vector<T> stored(found.bytes().size() / sizeof(T));
      std::memcpy(stored.data(), found.bytes().data(), found.bytes().size());
      for (std::size_t i = 0; i < stored.size(); ++i)
        all[static_cast<std::size_t>(parameter.offset) + i] =
            static_cast<double>(static_cast<Accumulator<T>>(stored[i]));
    });
  }
  return all;
}

// Trains steps [first, last], from a checkpoint unless `from` is empty, and saves.
fs::path averaged_run(const fs::path& folder, const RankLayout& layout, const Training& training,
                      std::int64_t last, const fs::path& from = {}) {
  fs::path directory;
  on_ranks(
      layout, training,
      [&](const Member& member) {
        std::int64_t done = 0;
        if (!from.empty()) done = load_checkpoint(from, member.engine).step;
        for (std::int64_t step = done + 1; step <= last; ++step) member.step(step);
        TrainerState state;
        state.step = last;
        const fs::path written = save_checkpoint(folder, member.engine, state, {.keep = 0});
        if (member.world.rank() == 0) directory = written;
      },
      from.empty());
  return directory;
}

// The average after the last step, from the weights after each step. With one process.
std::vector<double> plain_average(const Training& training, std::int64_t steps) {
  const EmaOptions ema = training.optimizer.ema;
  std::vector<double> average = trained({}, training, 0).weights;
  for (std::int64_t step = 1; step <= steps; ++step) {
    if (step % ema.every != 0 || step == training.limited_step) continue;
    const std::vector<double> weights = trained({}, training, step).weights;
    for (std::size_t i = 0; i < average.size(); ++i)
      average[i] = ema.decay * average[i] + (1 - ema.decay) * weights[i];
  }
  return average;
}

TEST(EmaTest, EveryLayoutHasTheAverageOfTheWeights) {
  const TemporaryDirectory directory;
  for (const std::int64_t every : {1, 2}) {
    Training training = averaged_training(DType::F64);
    training.optimizer.ema.every = every;
    if (every == 2) training.optimizer.kind = OptimizerKind::Muon;
    const std::vector<double> expected = plain_average(training, 5);
    int number = 0;
    for (const RankLayout& layout :
         std::vector<RankLayout>{{},
                                 {.dp = 2},
                                 {.dp = 2, .zero = 1},
                                 {.dp = 2, .zero = 3},
                                 {.dp = 4, .zero = 2, .shard_group = 2},
                                 {.tp = 2, .sequence_parallel = true},
                                 {.cp = 2},
                                 {.pp = 2},
                                 {.dp = 2, .zero = 1, .tp = 2, .pp = 2}}) {
      const fs::path saved =
          averaged_run(directory / fmt::format("{}-{}", every, number++), layout, training, 5);
      EXPECT_LT(difference(stored_elements(saved / "ema", training.model), expected), 1e-10)
          << to_string(layout);
      EXPECT_GT(difference(stored_elements(saved, training.model), expected), 1e-4);
    }
  }
}

TEST(EmaTest, IsTheSameWithOffload) {
  for (const OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Muon}) {
    const TemporaryDirectory directory;
    Training training = averaged_training(DType::BF16);
    training.optimizer.kind = kind;
    const auto average = [&](const char* name) {
      return read_text_file(averaged_run(directory / name, {}, training, 4) /
                            "ema/model.safetensors");
    };
    const std::string plain = average("plain");
    training.offload = {.on = true, .update = UpdateLocation::Device, .block_elements = 1000};
    EXPECT_TRUE(average("device") == plain);
    training.offload.update = UpdateLocation::Host;
    EXPECT_TRUE(average("host") == plain);
  }
}

TEST(EmaTest, ASkippedStepLeavesIt) {
  const TemporaryDirectory directory;
  Training training = averaged_training(DType::F64);
  training.limited_step = 3;
  training.limits.loss = 0.1;
  const fs::path saved = averaged_run(directory / "run", {}, training, 4);
  EXPECT_LT(difference(stored_elements(saved / "ema", training.model), plain_average(training, 4)),
            1e-12);
}

// In another layout, too.
TEST(EmaTest, ContinuesFromACheckpoint) {
  const TemporaryDirectory directory;
  for (const DType precision : {DType::F64, DType::BF16}) {
    const Training training = averaged_training(precision);
    const fs::path whole = averaged_run(directory / "whole", {}, training, 4),
                   half = averaged_run(directory / "half", {}, training, 2);
    const fs::path again = averaged_run(directory / "again", {}, training, 4, half);
    EXPECT_TRUE(read_text_file(again / "ema/model.safetensors") ==
                read_text_file(whole / "ema/model.safetensors"));
    const fs::path other =
        averaged_run(directory / "other", {.dp = 2, .zero = 3, .tp = 2}, training, 4, half);
    if (precision == DType::F64) {
      EXPECT_LT(difference(stored_elements(other / "ema", training.model),
                           stored_elements(whole / "ema", training.model)),
                1e-10);
    }
    for (const char* name : {"whole", "half", "again", "other"}) fs::remove_all(directory / name);
  }
}

TEST(EmaTest, StartsFromTheWeightsOfTheCheckpoint) {
  const TemporaryDirectory directory;
  const Training with = averaged_training(DType::F32);
  Training without = with;
  without.optimizer.ema = {};
  const fs::path before = averaged_run(directory / "before", {}, without, 2);
  EXPECT_FALSE(fs::exists(before / "ema"));
  const fs::path on = averaged_run(directory / "on", {.dp = 2, .zero = 1}, with, 2, before);
  EXPECT_EQ(stored_elements(on / "ema", with.model), stored_elements(before, with.model));
  const fs::path off = averaged_run(directory / "off", {}, without, 3, on);
  EXPECT_FALSE(fs::exists(off / "ema"));
}

TEST(EmaTest, ADamagedAverageIsRefused) {
  const TemporaryDirectory directory;
  const Training training = averaged_training(DType::F32);
  const fs::path saved = averaged_run(directory / "run", {}, training, 1);
  fs::resize_file(saved / "ema/model.safetensors", 100);
  EXPECT_THROW(averaged_run(directory / "again", {}, training, 2, saved), UserError);
}

// Its loss is said, not hidden: the average starts again.
TEST(EmaTest, AMissingAverageIsReported) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const auto config = [&](int steps) {
    return small_config(corpus, directory / "run",
                        fmt::format("steps: {}, eval_every: 0, checkpoint_every: 0, "
                                    "ema: {{decay: 0.5}}",
                                    steps));
  };
  run_training(config(3));
  fs::remove_all(directory / "run/checkpoints" / checkpoint_name(3) / "ema");
  const CapturedLog log;
  run_training(config(5));
  EXPECT_NE(log.warnings().find("/ema is missing: the average of the weights starts again"),
            std::string::npos)
      << log.text();
}

// The average is a model of its own, in fp32, with a tokenizer.
TEST(EmaTest, IsAModelDirectory) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  run_training(small_config(corpus, directory / "run",
                            "steps: 3, eval_every: 0, checkpoint_every: 0, precision: bf16, "
                            "ema: {decay: 0.5}"));
  const fs::path model = directory / "run/checkpoints" / checkpoint_name(3),
                 average = model / "ema";
  EXPECT_EQ(read_hf_config(average / "config.json"), read_hf_config(model / "config.json"));
  EXPECT_NE(read_text_file(average / "config.json").find("float32"), std::string::npos);
  EXPECT_TRUE(fs::exists(average / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(average / "README.md")) << "it describes the trained weights";
  EXPECT_EQ(list_checkpoints(directory / "run/checkpoints").size(), 1u);
}

}  // namespace
}  // namespace kintsugi
