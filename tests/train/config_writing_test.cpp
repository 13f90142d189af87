// Layouts and models of configurations, and what is written and read again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "core/error.h"
#include "core/file.h"
#include "launch/matrix.h"
#include "support/config_text.h"
#include "support/paths.h"
#include "train/config/config.h"

namespace kintsugi {
namespace {

using namespace config_text;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(RunConfigLayout, PipelinesAndRecomputation) {
  const RunConfig config = parse(
      kShort +
      "layout: {pp: 4, schedule: zb-h1, split: '7,9,9,7', recompute: full, recompute_every: 3}\n");
  const Layout& layout = config.layout;
  EXPECT_EQ(layout.schedule, PipelineKind::ZeroBubbleH1);
  EXPECT_EQ(layout.split, (std::vector{7, 9, 9, 7}));
  EXPECT_EQ(layout.recompute_every, 3);
  EXPECT_FALSE(config.layout_auto);
  EXPECT_THAT(to_yaml(config), HasSubstr("  split: \"7,9,9,7\"\n"));
  EXPECT_THAT(to_yaml(parse(kShort)), HasSubstr("  split: auto\n"));
  EXPECT_EQ(parse(kShort, {"layout.split=12"}).layout.split, std::vector{12});
  const std::vector<std::pair<std::string, PipelineKind>> schedules = {
      {"gpipe", PipelineKind::GPipe},
      {"1f1b", PipelineKind::OneForwardOneBackward},
      {"interleaved", PipelineKind::Interleaved},
      {"zb-h1", PipelineKind::ZeroBubbleH1}};
  for (const auto& [name, kind] : schedules)
    EXPECT_EQ(parse(kShort, {"layout.schedule=" + name}).layout.schedule, kind) << name;
}

TEST(RunConfigLayout, AutoIsOneWordForAllOfIt) {
  const RunConfig config = parse(kShort + "layout: auto\n");
  EXPECT_TRUE(config.layout_auto);
  EXPECT_EQ(config.layout, RunConfig{}.layout);
  EXPECT_TRUE(parse(kShort, {"layout=auto"}).layout_auto);
  EXPECT_EQ(parse(to_yaml(config)), without_origin(config));
  EXPECT_THAT(set_error("layout=automatic"), HasSubstr("layout"));
}

// As rank 0 broadcasts its choice. The micro-batch is not a key of this section.
TEST(RunConfigLayout, IsWrittenAsTextAndReadBack) {
  const Layout chosen{.tp = 2,
                      .cp = 3,
                      .pp = 4,
                      .context = ContextMethod::Ulysses,
                      .dp = 0,
                      .chunks = 2,
                      .schedule = PipelineKind::Interleaved,
                      .split = {1, 2, 3, 4, 5, 6, 7, 8},
                      .micro_batch = 5,
                      .zero = 1,
                      .shard_group = 6,
                      .sequence_parallel = true,
                      .recompute = Recompute::Full,
                      .recompute_every = 2};
  Layout taken{.micro_batch = 5};
  read_layout(to_yaml(chosen), taken);
  EXPECT_EQ(taken, chosen);
  Layout fixed = chosen;
  fixed.dp = 7;
  read_layout(to_yaml(fixed), taken);
  EXPECT_EQ(taken, fixed);
}

TEST(RunConfigLayout, MistakesAreNamed) {
  EXPECT_THAT(set_error("layout.schedule=2f2b"),
              HasSubstr("there is no schedule '2f2b': give gpipe, 1f1b, interleaved or zb-h1"));
  for (const char* split : {"7,x", "7,,9", "7;9", "-3,15", "0,12", "7.5,4.5", "4294967297,3"})
    EXPECT_THAT(set_error(fmt::format("layout.split='{}'", split)),
                AllOf(HasSubstr("layout.split: "), HasSubstr("is not a split: auto, or the layers "
                                                             "of each pipeline chunk")))
        << split;
  EXPECT_THAT(set_error("layout.recompute_every=2"),
              HasSubstr("layout.recompute_every is 2, but layout.recompute is none"));
  EXPECT_THAT(set_error("offload.update=host"),
              HasSubstr("offload.update is host, but the optimizer's state is on the device"));
  EXPECT_THAT(set_error("offload={optimizer: true, update: gpu}"),
              HasSubstr("auto, device or host"));
  EXPECT_THAT(set_error("offload.activations=true"),
              HasSubstr("offload.activations moves the inputs of blocks that are recomputed in "
                        "full, but layout.recompute is none"));
  EXPECT_THAT(error_of(kShort, {"offload.activations=true", "layout={pp: 2, recompute: full}"}),
              HasSubstr("4 layers in 2 chunks have no others"));
  EXPECT_EQ(error_of(kShort, {"offload.activations=true", "layout.recompute=full"}), "no error");
  EXPECT_THAT(error_of(kShort, {"offload.gradients=true", "layout={pp: 2, schedule: zb-h1}",
                                "batch={global: 8, micro: 1}"}),
              HasSubstr("offload.gradients moves a layer's gradients to the host"));
  EXPECT_EQ(error_of(kShort, {"offload.gradients=true"}), "no error");
  EXPECT_THAT(set_error("offload.weights=true"), HasSubstr("offload.weights"));
  EXPECT_THAT(set_error("offload.optimizer=much"), HasSubstr("offload.optimizer"));
  EXPECT_THAT(set_error("layout.recompute_every=0"), HasSubstr("layout.recompute_every is 0"));
}

TEST(RunConfigModel, PresetsFieldsAndFiles) {
  const RunConfig config = parse(kShort, {"model.layers=2", "model.tied=false"});
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_FALSE(config.model.tied);
  EXPECT_EQ(config.model.hidden_size, load_preset("llama-tiny").hidden_size);
  EXPECT_THAT(set_error("model.preset=llama-tyny"), HasSubstr("llama-tiny"));
  EXPECT_THAT(set_error("model.layers=many"), HasSubstr("--set model.layers=many"));
  const std::string file = test_data_directory() + "/qwen3/config.json";
  const RunConfig from_file =
      parse("model: {config: " + file + ", layers: 3}\ndata: {train: [{path: a}]}\n");
  EXPECT_EQ(from_file.model_config, file);
  EXPECT_EQ(from_file.model.family, Family::Qwen3);
  EXPECT_EQ(from_file.model.vocab_size, 67);
  EXPECT_EQ(from_file.model.layers, 3);
}

TEST(RunConfigWriting, ReadsBackToTheSame) {
  const std::vector<std::string> unusual = {
      "run.dir='a: \"b\" #c'",
      "run.seed=18446744073709551615",
      "model.preset=llama-8b",
      "model.norm_eps=1.2345678901234567e-6",
      "data.train=[{path: 'x y', weight: 0.1}, {path: -z}, {path: 'null', name: '#'}]",
      "data.valid_fraction=0",
      "batch.ramp={start: 8, increment: 24, samples: 7000}",
      "optimizer={lr: 0.30000000000000004, min_lr: 1e-300, schedule: linear}",
      "train={steps: 77, tokens: 1T, precision: bf16, dropout: 0.1}",
      "optimizer.warmup_steps=3",
      "train.loss_scale={initial: 7.5, minimum: 0.25}",
      "layout={dp: 1, recompute: selective, recompute_every: 4, schedule: interleaved, chunks: 2}",
      "layout.split='3,4,5'",
      "run.notify.command=echo 'it is' \"done\"",
      "run.notify.webhook=http://localhost:8080/a",
      "run.notify.on=[failed, checkpoint]",
      "run.notify.stalled_after=90s",
      "train.samples.prompts=[\"Once, upon: a time\", \"#2\"]",
      "train.samples.tokens=5",
      "device=cpu",
      "threads=12"};
  for (const auto& overrides : {std::vector<std::string>{}, unusual}) {
    const RunConfig config = parse(kShort, overrides);
    const std::string text = to_yaml(config);
    EXPECT_EQ(parse(text), without_origin(config)) << text;
    EXPECT_EQ(
        to_yaml(parse(text)).size() + std::string(" # from preset " + config.model_preset).size(),
        text.size());
  }
}

// A value of any kind is accepted, or an error in our own words: never one of the YAML library.
TEST(RunConfigWriting, ValuesOfEveryKind) {
  const std::string init = test_data_directory() + "/llama";
  for (const std::string& start : {kShort, kShort + "stages: [{steps: 3}]\n"})
    for (const auto& [key, value] : config_values(parse(kShort)))
      for (const char* other : {"{}", "[]", "null", "[{}]", "[null]", "{a: {}}", "7", "x"}) try {
          parse(start, {key + "=" + other});
          parse(start, {"model={init: '" + init + "'}", key + "=" + other});
        } catch (const UserError&) {
        } catch (const std::exception& error) {
          ADD_FAILURE() << key << "=" << other << ": " << error.what();
        }
}

TEST(RunConfigWriting, EveryKeyOnce) {
  const std::string text = to_yaml(parse(kShort));
  EXPECT_THAT(
      text,
      StartsWith("run:\n  dir: runs/run\n  seed: 1\n  from: null\n  time_limit: 0s\n  stop_margin: "
                 "0s\n  node_ledger: null\n  tensorboard: true\n  prometheus: true\n  wandb: "
                 "false\n  notify:\n    command: null\n    webhook: null\n    on: [\"finished\", "
                 "\"failed\", "
                 "\"stopped\", \"diverged\", \"spike\", \"stalled\"]\n    stalled_after: "
                 "auto\nmodel: # from preset llama-tiny\n  family: llama\n"));
  EXPECT_THAT(text,
              HasSubstr("\ndata:\n  train:\n    - path: a.txt\n      name: a\n      weight: auto"));
  EXPECT_THAT(text, HasSubstr("\n  betas: [0.9, 0.95]\n"));
  EXPECT_THAT(text, HasSubstr("\n  loss_scale:\n    initial: 4294967296"));
  for (const std::string& key : run_config_keys()) {
    if (key == "model.preset" || key == "model.config") continue;
    const std::string last = key.substr(key.rfind('.') + 1);
    EXPECT_THAT(text, HasSubstr((key == last ? "\n" : " ") + last + ":")) << key;
  }
}

// The ranks compare these values, so every key must be included.
TEST(RunConfigWriting, ValuesOfEveryKey) {
  const auto values = config_values(parse(kShort, {"optimizer.lr=3e-4", "run.seed=7"}));
  std::vector<std::string> keys;
  for (const auto& [key, value] : values) keys.push_back(key);
  for (const std::string& key : run_config_keys()) {
    if (key == "model.preset" || key == "model.config" || key == "data.train") continue;
    EXPECT_TRUE(std::any_of(keys.begin(), keys.end(), [&](const std::string& one) {
      return one == key || one.starts_with(key + ".");
    })) << key;
  }
  using Pair = std::pair<std::string, std::string>;
  for (const Pair& expected :
       {Pair{"optimizer.lr", "0.0003"}, Pair{"run.seed", "7"}, Pair{"data.train[0].path", "a.txt"},
        Pair{"optimizer.betas", "[0.9, 0.95]"}, Pair{"comm.deterministic", "false"}})
    EXPECT_THAT(values, Contains(expected));
  EXPECT_THAT(config_values(parse(kShort, {"layout=auto"})), Contains(Pair{"layout", "auto"}));
}

TEST(RunConfigWriting, KnownKeys) {
  const auto keys = run_config_keys();
  for (const char* key :
       {"run.dir", "model.preset", "model.layers", "data.train", "optimizer.betas",
        "train.loss_scale.minimum", "layout.recompute", "device", "threads"})
    EXPECT_THAT(keys, Contains(key));
  EXPECT_THAT(keys, Not(Contains("train.loss_scale")));
}

TEST(RunConfigFiles, ExamplesAreValid) {
  int examples = 0;
  for (const auto& file : std::filesystem::directory_iterator(source_directory() + "/examples")) {
    if (file.path().extension() != ".yaml") continue;
    ++examples;
    // Parsed only: scripts create the tokenizers and the models that some of them use.
    const std::string name = file.path().string();
    const Matrix matrix = read_matrix(read_text_file(name), name);
    for (const MatrixCell& cell : matrix.cells) {
      std::vector<std::string> overrides = cell.overrides;
      if (matrix.text.find("\n  init: runs/") != std::string::npos)
        overrides.push_back("model.init=" + test_data_directory() + "/llama");
      const RunConfig config = parse_run_config(matrix.text, name, overrides);
      EXPECT_EQ(parse(to_yaml(config)), without_origin(config)) << name << " " << cell.name;
    }
  }
  EXPECT_GE(examples, 1);
  EXPECT_THROW(load_run_config("no/such/file.yaml"), UserError);
}

// A damaged text either gives a configuration that can be written and read back, or a UserError.
TEST(RunConfigFuzz, ParsesOrIsRefused) {
  const std::string full = to_yaml(parse(kShort));
  const std::string alphabet = "{}[]:,-#&*!|>'\"%@`?~ \t\n\r0aeE.=\\\0\x80\xff\xc3\xef\xbb\xbf";
  std::mt19937_64 random(424242);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  int accepted = 0;
  constexpr int kIterations = 6000;
  for (int i = 0; i < kIterations; ++i) {
    std::string text = i % 3 == 0 ? kContract : i % 3 == 1 ? full : kShort;
    for (std::size_t changes = 1 + below(4); changes > 0 && !text.empty(); --changes) {
      const std::size_t at = below(text.size());
      switch (below(6)) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 2:
          text.erase(at, 1 + below(12));
          break;
        case 3:
          text.insert(at, text.substr(below(text.size()), below(24)));
          break;
        case 4:
          text.insert(at, 1 + below(4), alphabet[below(alphabet.size())]);
          break;
        default:
          text[at] = alphabet[below(alphabet.size())];
          break;
      }
    }
    try {
      const RunConfig config = parse(text);
      ASSERT_EQ(parse(to_yaml(config)), without_origin(config)) << text;
      ++accepted;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(accepted, kIterations / 100);
  EXPECT_LT(accepted, kIterations);
}

TEST(RunConfigFuzz, Overrides) {
  const std::string seed = "optimizer.betas=[0.9, 0.95]";
  const std::string alphabet = "{}[]:,-#&*!|>'\".= \n0a";
  std::mt19937_64 random(7);
  for (int i = 0; i < 1500; ++i) {
    std::string assignment = seed;
    for (int change = 0; change < 3; ++change)
      assignment[random() % assignment.size()] = alphabet[random() % alphabet.size()];
    try {
      const RunConfig config = parse(kShort, {assignment});
      EXPECT_EQ(parse(to_yaml(config)), without_origin(config)) << assignment;
    } catch (const UserError&) {
    }
  }
}

}  // namespace
}  // namespace kintsugi
