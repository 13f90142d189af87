// Runs with `adapter: {kind: lora}`: their checkpoints are PEFT directories, which continue in any
// layout, are merged to a model with the same predictions, and start other runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/adapter/merge_adapter.h"
#include "model/adapter/stored_adapter.h"
#include "support/errors.h"
#include "support/loaded_model.h"
#include "support/rank_trainers.h"
#include "support/raw_model.h"
#include "support/same_checkpoint.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class AdapterRun : public testing::Test {
 protected:
  void SetUp() override {
    directory_.write("corpus.txt", small_corpus(200));
    train(small_config(path("corpus.txt"), path("base"), "steps: 2"));
  }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  static void train(const std::string& yaml, int ranks = 1,
                    const std::vector<std::string>& overrides = {}) {
    CapturedLog log;
    EXPECT_EQ(train_on_ranks(ranks, yaml, overrides), RunOutcome::Finished);
  }
  // A run that trains adapters of the base.
  std::string config(const std::string& run, const std::string& train,
                     const std::string& adapter = "r: 4, alpha: 8, targets: [q_proj, down_proj]",
                     const std::string& base = "") const {
    return fmt::format(
        "run: {{dir: \"{}\", seed: 3}}\nmodel: {{init: \"{}\"}}\n"
        "data: {{train: [{{path: \"{}\"}}], sequence_length: 24, valid_fraction: 0.1}}\n"
        "batch: {{global: 8, micro: 2}}\noptimizer: {{lr: 4e-3, min_lr: 1e-4, warmup_steps: 1}}\n"
        "train: {{eval_batches: 2, keep_checkpoints: 0, {}}}\nadapter: {{kind: lora, {}}}\n",
        path(run), base.empty() ? path("base") : base, path("corpus.txt"), train, adapter);
  }
  static RawModel adapters_of(const fs::path& checkpoint) { return read_raw_model(checkpoint); }
  static double largest_difference(const RawModel& a, const RawModel& b) {
    EXPECT_EQ(a.size(), b.size());
    double most = 0;
    for (const auto& [name, tensor] : a)
      for (std::size_t i = 0; i < tensor.values.size(); ++i)
        most = std::max(most, std::fabs(tensor.values[i] - b.at(name).values[i]));
    return most;
  }

  TemporaryDirectory directory_;
};

TEST_F(AdapterRun, ACheckpointIsAPeftDirectory) {
  train(config("run", "steps: 3, ema: {decay: 0.5}",
               "r: 4, alpha: 8, targets: [q_proj, down_proj], train: [norm]"));
  const fs::path saved = last_checkpoint(directory_ / "run");
  for (const char* name : {"config.json", "model.safetensors", "generation_config.json"})
    EXPECT_FALSE(fs::exists(saved / name)) << name;
  for (const char* name : {"README.md", "tokenizer_config.json", "trainer.json", "checksums.json"})
    EXPECT_TRUE(fs::exists(saved / name)) << name;
  const auto written = nlohmann::json::parse(raw_file(saved / "adapter_config.json"));
  EXPECT_EQ(written["r"], 4);
  EXPECT_EQ(written["lora_alpha"], 8);
  EXPECT_EQ(written["target_modules"], (nlohmann::json{"down_proj", "q_proj"}));
  EXPECT_EQ(written["modules_to_save"], nlohmann::json{"norm"});
  EXPECT_EQ(written["base_model_name_or_path"], last_checkpoint(directory_ / "base").string());
  EXPECT_EQ(written["fan_in_fan_out"], false);
  EXPECT_EQ(written["task_type"], "CAUSAL_LM");
  // Two layers of two modules, and what is trained whole.
  const RawModel tensors = adapters_of(saved);
  EXPECT_EQ(tensors.size(), 9u);
  EXPECT_THAT(tensors.at("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight").shape,
              testing::ElementsAre(4, 48));
  EXPECT_EQ(tensors.count("base_model.model.model.norm.weight"), 1u);
  EXPECT_EQ(adapters_of(saved / "ema").size(), 9u);
  EXPECT_GT(largest_difference(tensors, adapters_of(saved / "ema")), 0);
}

// The first half is trained in one layout and the second in another.
TEST_F(AdapterRun, ContinuesInAnotherLayout) {
  train(config("whole", "steps: 6, ema: {decay: 0.5}"));
  const fs::path whole = last_checkpoint(directory_ / "whole");
  const struct {
    int ranks;
    const char* layout;
  } layouts[] = {{2, "layout={tp: 2}"}, {2, "layout={pp: 2}"}, {2, "layout={zero: 3}"}};
  const std::string half = "steps: 6, ema: {decay: 0.5}, checkpoint_every: 3";
  train(config("half", half));
  fs::remove(directory_ / "half/checkpoints/latest");
  fs::create_directory_symlink("step-00000003", directory_ / "half/checkpoints/latest");
  for (const auto& [ranks, layout] : layouts) {
    SCOPED_TRACE(layout);
    const std::string run = std::string("run") + layout;
    fs::copy(directory_ / "half", directory_ / run,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    train(config(run, half), ranks, {layout});
    const fs::path last = last_checkpoint(directory_ / run);
    EXPECT_EQ(last.filename(), "step-00000006");
    EXPECT_LT(largest_difference(adapters_of(last), adapters_of(whole)), 2e-5);
    EXPECT_LT(largest_difference(adapters_of(last / "ema"), adapters_of(whole / "ema")), 2e-5);
  }
}

// The merged model predicts what base and adapters predict together, and the first step of a run
// from it has the loss of the next step of the run with adapters.
TEST_F(AdapterRun, TheMergedModelIsTheSame) {
  const std::string targets = "r: 4, alpha: 8, targets: [all-linear]";
  train(config("run", "steps: 4, precision: fp32", targets));
  const fs::path saved = last_checkpoint(directory_ / "run");
  merge_adapter(saved, "", directory_ / "merged");
  LoadedModel merged(directory_ / "merged"), plain(last_checkpoint(directory_ / "base"));
  const auto backend = make_cpu_backend(1);
  LocalCommunicator alone("tensor", backend.get());
  InferenceEngine together(*backend, alone, last_checkpoint(directory_ / "base"),
                           {.max_length = 32, .max_sequences = 1, .adapter = saved});
  const std::vector<std::int32_t> text = {'t', 'h', 'e', ' ', 'r', 'i', 'v', 'e', 'r'};
  std::vector<double> scores;
  together.submit({.prompt = text, .score_from = 1},
                  {.on_scores = [&](const std::vector<SampledToken>& tokens) {
                    for (const SampledToken& token : tokens) scores.push_back(*token.logprob);
                  }});
  together.run();
  const std::vector<double> expected = merged.log_probabilities(text),
                            base = plain.log_probabilities(text);
  double changed = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(scores[i], expected[i], 1e-5);
    changed = std::max(changed, std::fabs(scores[i] - base[i]));
  }
  EXPECT_GT(changed, 1e-3);
  // What the training engine computes with adapters beside the weights.
  const auto first_loss = [&](const std::string& run, const std::string& yaml) {
    train(yaml);
    const std::string lines = raw_file(directory_ / run / "metrics.jsonl");
    return nlohmann::json::parse(lines.substr(0, lines.find('\n')))["loss"].get<double>();
  };
  const std::string with = config("with", "steps: 1", "init: \"" + saved.string() + "\"");
  std::string from_merged = config("without", "steps: 1", "r: 1", path("merged"));
  from_merged.erase(from_merged.find("adapter:"));
  EXPECT_NEAR(first_loss("with", with), first_loss("without", from_merged), 1e-5);
}

// Adapters of experts are saved on ranks with other experts, read by others, merged, and computed
// in generation, on one tensor rank and on two.
TEST_F(AdapterRun, OfExpertsIsSavedContinuedAndMerged) {
  const std::string mixture =
      "model={family: qwen3_moe, vocab_size: 256, hidden_size: 32, layers: 2, heads: 4, kv_heads: "
      "2, ffn_size: 48, max_positions: 64, experts: {count: 4, chosen: 2, size: 16}}";
  train(small_config(path("corpus.txt"), path("mixture"), "steps: 2"), 1, {mixture});
  const std::string adapter = "r: 4, alpha: 8, targets: [gate_proj, up_proj, down_proj]";
  const auto yaml = [&](const std::string& run, const std::string& keys) {
    return config(run, "precision: fp32, steps: 4, " + keys, adapter, path("mixture"));
  };
  train(yaml("whole", ""));
  train(yaml("run", "checkpoint_every: 2"), 2, {"layout={ep: 2}"});
  const fs::path whole = last_checkpoint(directory_ / "whole"),
                 saved = last_checkpoint(directory_ / "run");
  EXPECT_EQ(adapters_of(saved).size(), 2u * 2 * 3 * 4);
  EXPECT_LT(largest_difference(adapters_of(saved), adapters_of(whole)), 2e-5);
  fs::remove(directory_ / "run/checkpoints/latest");
  fs::create_directory_symlink("step-00000002", directory_ / "run/checkpoints/latest");
  fs::remove_all(saved);
  train(yaml("run", ""), 2, {"layout={tp: 2}"});
  EXPECT_LT(largest_difference(adapters_of(saved), adapters_of(whole)), 2e-5);

  merge_adapter(saved, "", directory_ / "merged");
  const std::vector<std::int32_t> text = {'t', 'h', 'e', ' ', 'r', 'i', 'v', 'e', 'r'};
  const fs::path base = last_checkpoint(directory_ / "mixture");
  const auto expected = LoadedModel(directory_ / "merged").log_probabilities(text),
             plain = LoadedModel(base).log_probabilities(text);
  double changed = 0;
  for (std::size_t i = 0; i < plain.size(); ++i)
    changed = std::max(changed, std::fabs(expected[i] - plain[i]));
  EXPECT_GT(changed, 1e-3);
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](World& world) {
      const auto backend = make_cpu_backend(1);
      const auto tensor = world.split("tensor", 0, world.rank());
      InferenceEngine engine(*backend, *tensor, base,
                             {.max_length = 32, .max_sequences = 1, .adapter = saved});
      if (world.rank() > 0) return engine.follow();
      std::vector<double> scores;
      engine.submit({.prompt = text, .score_from = 1},
                    {.on_scores = [&](const std::vector<SampledToken>& tokens) {
                      for (const SampledToken& token : tokens) scores.push_back(*token.logprob);
                    }});
      engine.run();
      ASSERT_EQ(scores.size(), expected.size());
      for (std::size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], expected[i], 1e-5);
    });
}

TEST_F(AdapterRun, StartsFromAdapters) {
  train(config("first", "steps: 2"));
  const std::string first = last_checkpoint(directory_ / "first").string();
  const auto parsed = [&](const std::string& keys) {
    return parse_run_config(config("second", "steps: 2", keys), "test.yaml");
  };
  const RunConfig read = parsed("init: \"" + first + "\"");
  EXPECT_EQ(read.model.lora.r, 4);
  EXPECT_EQ(read.model.lora.alpha, 8);
  EXPECT_THAT(read.model.lora.targets, testing::ElementsAre("down_proj", "q_proj"));
  EXPECT_EQ(parse_run_config(to_yaml(read), "again").model.lora, read.model.lora);
  EXPECT_NO_THROW(parsed("r: 4, init: \"" + first + "\""));
  EXPECT_THAT(user_error_of([&] { parsed("r: 8, init: \"" + first + "\""); }),
              AllOf(HasSubstr("adapter.r"), HasSubstr("4")));
  EXPECT_THAT(user_error_of([&] { parsed("init: \"" + path("base") + "\""); }),
              AllOf(HasSubstr("adapter.init"), HasSubstr("adapter_config.json")));
}

TEST_F(AdapterRun, MistakesAreNamed) {
  const std::string without_base =
      small_config(path("corpus.txt"), path("x"), "steps: 2", "adapter: {kind: lora}\n");
  CapturedLog log;
  EXPECT_THAT(user_error_of([&] { train_on_ranks(1, without_base); }), HasSubstr("model.init"));
  train(config("run", "steps: 1"));
  // Another base, another rank.
  train(small_config(path("corpus.txt"), path("other"), "steps: 3"));
  EXPECT_THAT(user_error_of([&] {
                train_on_ranks(
                    1, config("run", "steps: 2", "r: 4, alpha: 8, targets: [q_proj, down_proj]",
                              path("other")));
              }),
              AllOf(HasSubstr("model.init"), HasSubstr("not those")));
  EXPECT_THAT(user_error_of([&] {
                train_on_ranks(
                    1, config("run", "steps: 2", "r: 8, alpha: 8, targets: [q_proj, down_proj]"));
              }),
              AllOf(HasSubstr("r 4"), HasSubstr("r 8")));
  EXPECT_THAT(user_error_of([&] {
                train_on_ranks(1, config("run", "steps: 2", "r: 4, alpha: 8, targets: [q_proj]"));
              }),
              HasSubstr("adapter.targets"));
  // An adapter is no complete model.
  EXPECT_THAT(
      user_error_of([&] { parse_run_config(config("y", "steps: 1", "r: 4", path("run")), "t"); }),
      HasSubstr("merge-adapter"));
  EXPECT_EQ(last_checkpoint(directory_ / "run").filename(), "step-00000001");
}

}  // namespace
}  // namespace kintsugi
