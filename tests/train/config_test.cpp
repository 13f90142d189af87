#include "train/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "core/file.h"
#include "support/config_text.h"
#include "support/paths.h"
#include "train/config/checks.h"

namespace kintsugi {
namespace {

using namespace config_text;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(RunConfigReading, TheContract) {
  const RunConfig config = parse(kContract);
  EXPECT_EQ(config.run.dir, "runs/demo");
  EXPECT_EQ(config.run.seed, 1u);
  EXPECT_EQ(config.model_preset, "llama-tiny");
  ModelConfig model = load_preset("llama-tiny");
  model.max_positions = 256;  // the trained sequence length
  EXPECT_EQ(config.model, model);
  ASSERT_EQ(config.data.train.size(), 1u);
  EXPECT_EQ(config.data.train[0].path, "corpus.txt");
  EXPECT_EQ(config.data.train[0].weight, 1.0);
  EXPECT_EQ(config.data.valid_fraction, 0.05);
  EXPECT_EQ(config.data.tokenizer, "bytes");
  EXPECT_EQ(config.data.sequence_length, 256);
  EXPECT_EQ(config.batch.global, 32);
  EXPECT_EQ(config.layout.micro_batch, 8);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.min_lr, 1e-4);
  EXPECT_EQ(config.optimizer.warmup_steps, 50);
  EXPECT_EQ(config.optimizer.schedule, ScheduleKind::Cosine);
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_EQ(config.optimizer.betas, (std::array{0.9, 0.95}));
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.optimizer.clip, 1.0);
  EXPECT_EQ(config.train.steps, 500);
  EXPECT_EQ(config.train.eval_every, 100);
  EXPECT_EQ(config.train.checkpoint_every, 250);
  EXPECT_EQ(config.train.precision, DType::F32);
  EXPECT_EQ(config.train.dropout, 0.0);
  EXPECT_EQ(config.layout, RunConfig{}.layout);
  EXPECT_EQ(config.device, DeviceChoice::Auto);
}

TEST(RunConfigReading, DefaultsAreThoseOfTheContract) {
  RunConfig expected = parse(kContract);
  expected.run.dir = "runs/run";
  expected.data.train[0].path = "a.txt";
  expected.data.train[0].name = "a";
  expected.data.train[0].weight = std::nullopt;  // like 1, except for Megatron's order
  EXPECT_EQ(parse(kShort), expected);
  EXPECT_EQ(parse(kShort + "layout:\n").layout, RunConfig{}.layout);
}

TEST(RunConfigReading, RefusesWhatThisVersionCannotDo) {
  EXPECT_THROW(parse(kShort, {"optimizer.moments=fp16"}), UserError);
}

TEST(RunConfigReading, EveryKindOfValue) {
  const RunConfig config = parse(R"(
run: {dir: "a dir", seed: 18446744073709551615}
model: {preset: gpt2-tiny, layers: 2}
data:
  train:
    - {path: a.txt, weight: 0.25}
    - path: 'b #1.txt'
  tokenizer: bytes
  sequence_length: 512
batch: {global: 4k, micro: 1e2}
optimizer: {schedule: wsd, decay_steps: 1_000, betas: [0, 0.999], clip: 0}
train:
  steps: 2M
  eval_every: 0
  precision: fp16
  loss_scale: {initial: 65536, hysteresis: 1}
layout: {dp: 1, recompute: full, sequence_parallel: off}
device: cuda
threads: 3
)",
                                 {"batch.global=400"});
  EXPECT_EQ(config.run.dir, "a dir");
  EXPECT_EQ(config.run.seed, UINT64_MAX);
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.model.family, Family::Gpt2);
  EXPECT_EQ(config.data.train.at(0).weight, 0.25);
  EXPECT_EQ(config.data.train.at(1).path, "b #1.txt");
  EXPECT_EQ(config.data.train.at(1).weight, std::nullopt);
  EXPECT_EQ(config.batch.global, 400);
  EXPECT_EQ(config.layout.micro_batch, 100);
  EXPECT_EQ(config.optimizer.schedule, ScheduleKind::Wsd);
  EXPECT_EQ(config.optimizer.decay_steps, 1000);
  EXPECT_EQ(config.optimizer.betas, (std::array{0.0, 0.999}));
  EXPECT_EQ(config.train.steps, 2'000'000);
  EXPECT_EQ(config.train.precision, DType::F16);
  EXPECT_EQ(config.train.loss_scale.initial, 65536.0);
  EXPECT_EQ(config.train.loss_scale.hysteresis, 1);
  EXPECT_EQ(config.train.loss_scale.growth_interval, 1000);
  EXPECT_EQ(config.layout.dp, 1);
  EXPECT_EQ(config.layout.recompute, Recompute::Full);
  EXPECT_EQ(config.device, DeviceChoice::Cuda);
  EXPECT_EQ(config.threads, 3);
}

TEST(RunConfigReading, TheOldNameOfASection) {
  const RunConfig config =
      parse(kShort + "cuda: {graphs: false, tf32: true}\n", {"cuda.device=1", "gpu.tf32=false"});
  EXPECT_EQ(config.gpu.graphs, false);
  EXPECT_EQ(parse(kShort).gpu.graphs, std::nullopt);
  EXPECT_EQ(parse(kShort + "gpu: {graphs: auto}\n").gpu.graphs, std::nullopt);
  EXPECT_FALSE(config.gpu.tf32);
  EXPECT_EQ(config.gpu.device, "1");
  EXPECT_THAT(to_yaml(config), AllOf(HasSubstr("gpu:"), Not(HasSubstr("cuda:"))));
  EXPECT_EQ(error_of(kShort + "cuda: {graphs: false}\ngpu: {graphs: true}\n"),
            "demo.yaml line 3: cuda is the old name of gpu, which is given, too: remove cuda");
  EXPECT_THAT(error_of(kShort + "cuda: {graph: false}\n"),
              StartsWith("demo.yaml line 3: unknown key 'gpu.graph'"));
}

TEST(RunConfigReading, TheEndOfARun) {
  EXPECT_EQ(parse(kShort).total_steps(), 500);
  // 32 x 256 = 8192 tokens per step.
  EXPECT_EQ(parse(kShort, {"train.tokens=8192000"}).total_steps(), 1000);
  EXPECT_EQ(parse(kShort, {"train.tokens=8192001"}).total_steps(), 1001);
  EXPECT_EQ(parse(kShort, {"train.tokens=8192000", "train.steps=700"}).total_steps(), 700);
  EXPECT_EQ(parse(kShort, {"train.tokens=819200", "train.steps=700"}).total_steps(), 100);
  EXPECT_THAT(set_error("train.steps=0"), HasSubstr("the run has no end"));
  // Steps of 8 sequences up to sample 16, of 16 up to 32, of 24 up to 48, then of 32.
  const std::vector<std::string> ramp = {"batch.ramp={start: 8, increment: 8, samples: 48}",
                                         "optimizer.warmup_steps=0"};
  const auto with_ramp = [&](const std::string& end) {
    std::vector<std::string> all = ramp;
    all.push_back("train." + end);
    return parse(kShort, all);
  };
  const RunConfig by_steps = with_ramp("steps=7");
  EXPECT_EQ(by_steps.total_samples(), 8 + 8 + 16 + 24 + 32 + 32 + 32);
  EXPECT_EQ(by_steps.total_tokens(), 152 * 256);
  EXPECT_EQ(with_ramp("tokens=" + std::to_string(152 * 256)).total_steps(), 7);
  EXPECT_EQ(with_ramp("tokens=" + std::to_string(152 * 256 + 1)).total_steps(), 8);
  EXPECT_EQ(with_ramp("tokens=" + std::to_string(17 * 256)).total_steps(), 3);
  // A saved run may be extended.
  const std::string saved = to_yaml(parse(kShort, {"train.tokens=8192000"}));
  EXPECT_EQ(parse(saved, {"train.tokens=16384000"}).total_steps(), 2000);
}

// Key names of other trainers lead to our keys, in any section.
TEST(RunConfigErrors, NamesOfOtherTrainers) {
  for (const auto& [theirs, ours] : {std::pair("optimizer.learning_rate", "optimizer.lr"),
                                     {"learning-rate", "optimizer.lr"},
                                     {"train.max_steps", "train.steps"},
                                     {"data.seq_length", "data.sequence_length"},
                                     {"train.max_seq_len", "data.sequence_length"},
                                     {"batch.per_device_train_batch_size", "batch.micro"},
                                     {"train.global_batch_size", "batch.global"},
                                     {"layout.tensor_parallel_size", "layout.tp"},
                                     {"layout.tensor_model_parallel_size", "layout.tp"},
                                     {"layout.pipeline_model_parallel_size", "layout.pp"},
                                     {"optimizer.gradient_clipping", "optimizer.clip"},
                                     {"train.max_grad_norm", "optimizer.clip"},
                                     {"optimizer.adam_beta1", "optimizer.betas"},
                                     {"train.bf16", "train.precision"},
                                     {"num_layers", "model.layers"}})
    EXPECT_THAT(set_error(std::string(theirs) + "=1"),
                HasSubstr("did you mean '" + std::string(ours) + "'"))
        << theirs;
  EXPECT_THAT(error_of("model: {preset: llama-tiny, num_hidden_layers: 3}\n"),
              HasSubstr("did you mean 'layers'"));
}

TEST(RunConfigErrors, EverySynonymIsOfAKnownKeyAndIsNotAKey) {
  const std::vector<std::string> keys = run_config_keys();
  const auto known = [&](const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  for (const Synonym& one : run_config_synonyms()) {
    EXPECT_TRUE(known(one.ours)) << one.ours;
    const std::string section = one.ours.substr(0, one.ours.find('.') + 1);
    for (const std::string& theirs : one.theirs) EXPECT_FALSE(known(section + theirs)) << theirs;
  }
}

TEST(RunConfigErrors, UnknownKeys) {
  EXPECT_EQ(error_of(kShort + "optimizer:\n  lr: 1e-3\n  warmup_step: 5\n"),
            "demo.yaml line 5: unknown key 'optimizer.warmup_step'; did you mean "
            "'optimizer.warmup_steps'?");
  EXPECT_EQ(error_of(kShort + "optimiser: {}\n"),
            "demo.yaml line 3: unknown key 'optimiser'; did you mean 'optimizer'?");
  EXPECT_EQ(error_of(kShort + "train: {lr: 1}\n"),
            "demo.yaml line 3: unknown key 'train.lr'; did you mean 'optimizer.lr'?");
  EXPECT_EQ(error_of(kShort + "train: {loss_scale: {inital: 1}}\n"),
            "demo.yaml line 3: unknown key 'train.loss_scale.inital'; did you mean "
            "'train.loss_scale.initial'?");
  EXPECT_EQ(
      error_of("model: {preset: llama-tiny}\ndata:\n  train:\n    - {path: a}\n    - {path: b, "
               "wieght: 2}\n"),
      "demo.yaml line 5: unknown key 'data.train[1].wieght'; did you mean 'data.train[1].weight'?");
  EXPECT_EQ(set_error("optimizer.lrr=1"),
            "--set optimizer.lrr=1: unknown key 'optimizer.lrr'; did you mean 'optimizer.lr'?");
  EXPECT_THAT(error_of(kShort + "batch: {utterly_different: 1}\n"),
              HasSubstr("the keys are global, micro"));
  const std::string model =
      error_of("model: {preset: llama-tiny, hiden_size: 64}\ndata: {train: [{path: a}]}\n");
  EXPECT_THAT(model, StartsWith("demo.yaml line 1: "));
  EXPECT_THAT(model, HasSubstr("'model.hiden_size'"));
  EXPECT_THAT(model, HasSubstr("hidden_size'"));
}

TEST(RunConfigErrors, WrongTypes) {
  EXPECT_EQ(error_of(kShort + "optimizer:\n  lr: [1]\n"),
            "demo.yaml line 4: optimizer.lr: a number is expected, found a list");
  EXPECT_EQ(error_of(kShort + "optimizer: {lr: }\n"),
            "demo.yaml line 3: optimizer.lr: a number is expected, found nothing");
  EXPECT_THAT(error_of(kShort + "optimizer: {lr: fast}\n"),
              StartsWith("demo.yaml line 3: optimizer.lr: 'fast' is not a number"));
  EXPECT_THAT(error_of(kShort + "batch: 7\n"),
              HasSubstr("batch: a map of keys is expected, found '7'"));
  EXPECT_THAT(error_of(kShort + "train: {steps: 1.5}\n"),
              HasSubstr("train.steps: '1.5' is not a whole number"));
  EXPECT_THAT(set_error("layout.sequence_parallel=maybe"),
              HasSubstr("'maybe' is neither true nor false"));
  EXPECT_THAT(
      set_error("optimizer.schedule=cosin"),
      HasSubstr("optimizer.schedule: 'cosin' is not a schedule: cosine, linear, wsd or constant"));
  EXPECT_THAT(set_error("train.precision=fp8"), HasSubstr("'fp8' is not a precision"));
  EXPECT_THAT(set_error("device=gpu"), HasSubstr("'gpu' is not auto, cpu, cuda or hip"));
  EXPECT_THAT(set_error("optimizer.betas=0.9"), HasSubstr("a list of 2 is expected, found '0.9'"));
  EXPECT_THAT(set_error("optimizer.betas=[0.9]"),
              HasSubstr("a list of 2 is expected, found one of 1"));
  EXPECT_THAT(set_error("optimizer.betas=[0.9, {}]"),
              HasSubstr("expected in the list, found a map"));
  EXPECT_THAT(set_error("data.train=a.txt"),
              HasSubstr("data.train: a list of maps is expected, found 'a.txt'"));
  EXPECT_THAT(set_error("data.train=[a.txt]"),
              HasSubstr("data.train: item 0 must be a map of keys, found 'a.txt'"));
  EXPECT_THAT(set_error("layout.dp=many"), HasSubstr("layout.dp: 'many' is not a whole number"));
  EXPECT_THAT(set_error("model=llama-tiny"),
              HasSubstr("demo.yaml (with --set model=llama-tiny): "));
}

TEST(RunConfigErrors, Ranges) {
  EXPECT_EQ(set_error("optimizer.lr=-1"),
            "--set optimizer.lr=-1: optimizer.lr is -1: it must be above 0");
  EXPECT_EQ(error_of(kShort + "optimizer:\n  betas: [0.9, 1]\n"),
            "demo.yaml line 4: optimizer.betas is 1: it must be at least 0 and below 1");
  for (const char* assignment : {"data.valid_fraction=1",
                                 "data.valid_fraction=-0.1",
                                 "data.sequence_length=0",
                                 "batch.global=0",
                                 "batch.micro=0",
                                 "optimizer.min_lr=-1",
                                 "optimizer.warmup_steps=-1",
                                 "optimizer.weight_decay=-1",
                                 "optimizer.eps=0",
                                 "optimizer.clip=-1",
                                 "train.steps=-1",
                                 "train.tokens=-1",
                                 "train.eval_batches=-1",
                                 "train.log_every=0",
                                 "train.dropout=1",
                                 "train.dropout=-0.5",
                                 "train.loss_scale.growth_interval=0",
                                 "train.loss_scale.minimum=0",
                                 "layout.zero=4",
                                 "layout.tp=0",
                                 "layout.dp=0",
                                 "threads=-1"})
    EXPECT_THAT(set_error(assignment), HasSubstr(": it must be ")) << assignment;
  EXPECT_THAT(set_error("data.train=[{path: a, weight: 0}]"),
              HasSubstr("data.train[0].weight is 0: it must be above 0"));
  EXPECT_THAT(set_error("run.seed=-1"), HasSubstr("run.seed: '-1' is negative"));
  EXPECT_THAT(set_error("run.dir=''"),
              HasSubstr("run.dir: a string is expected, found an empty one"));
}

TEST(RunConfigErrors, KeysThatDisagree) {
  EXPECT_EQ(error_of(kShort + "batch:\n  micro: 8\n  global: 30\n"),
            "demo.yaml line 5: batch.global is 30, which is not a multiple of batch.micro 8: use "
            "24 or 32");
  EXPECT_EQ(
      set_error("batch.global=5"),
      "--set batch.global=5: batch.global is 5, which is not a multiple of batch.micro 8: use 8");
  EXPECT_THAT(set_error("optimizer.min_lr=0.01"),
              HasSubstr("optimizer.min_lr is 0.01, above optimizer.lr 0.001"));
  EXPECT_THAT(set_error("optimizer.warmup_steps=501"),
              HasSubstr("is 501, but the run has only 500 steps"));
  EXPECT_EQ(set_error("optimizer.warmup_steps=500"), "no error");
  EXPECT_THAT(set_error("optimizer.decay_steps=5"),
              HasSubstr("schedule cosine has no decay phase"));
  EXPECT_THAT(error_of(kShort, {"optimizer.schedule=wsd", "optimizer.decay_steps=451"}),
              HasSubstr("is more than the run's 500 steps"));
  EXPECT_EQ(error_of(kShort, {"optimizer.schedule=wsd", "optimizer.decay_steps=450"}), "no error");
  EXPECT_THAT(set_error("train.loss_scale.initial=0.5"),
              HasSubstr("below train.loss_scale.minimum 1"));
  EXPECT_THAT(set_error("data.train=[]"), HasSubstr("data.train is empty"));
  EXPECT_THAT(set_error("data.train=[{weight: 1}]"), HasSubstr("an item without a path"));
  EXPECT_THAT(error_of("data: {train: [{path: a}]}"), HasSubstr("demo.yaml has no section model"));
  EXPECT_THAT(
      error_of("model: {preset: gpt2-tiny}\ndata: {train: [{path: a}], sequence_length: 513}\n"),
      HasSubstr("data.sequence_length is 513, but the model has only 512 learned positions"));
  EXPECT_EQ(set_error("data.sequence_length=513"), "no error");  // rotary positions have no table
  EXPECT_THAT(error_of(kShort + "batch: {}\nbatch: {}\n"),
              HasSubstr("line 4: batch is given twice"));
}

TEST(RunConfigErrors, OptionsWithoutEffect) {
  EXPECT_EQ(set_error("train.ema={every: 4, decay: 0.9}"), "no error");
  EXPECT_THAT(set_error("train.ema.every=4"),
              HasSubstr("train.ema.every is 4, but without train.ema.decay there is no average"));
  EXPECT_EQ(set_error("optimizer.skip_step={window: 64, deviations: 6}"), "no error");
  EXPECT_THAT(set_error("optimizer.skip_step.window=64"),
              HasSubstr("optimizer.skip_step.window is 64, but without "
                        "optimizer.skip_step.deviations no step is skipped"));
}

TEST(RunConfigErrors, Ramps) {
  const auto ramp = [](const std::string& values) {
    return error_of(kShort + "batch:\n  global: 32\n  ramp: {" + values + "}\n");
  };
  EXPECT_EQ(ramp("start: 8, increment: 8, samples: 100"), "no error");
  EXPECT_EQ(ramp("start: 32, increment: 8, samples: 100"),
            "demo.yaml line 5: batch.ramp.start is 32, which is batch.global, so nothing grows: "
            "lower it, or remove batch.ramp");
  EXPECT_EQ(ramp("start: 40, increment: 8, samples: 100"),
            "demo.yaml line 5: batch.ramp.start is 40, above batch.global 32: lower it");
  EXPECT_EQ(ramp("start: 8, increment: 16, samples: 100"),
            "demo.yaml line 5: batch.ramp.increment is 16, which does not divide the 24 sequences "
            "from batch.ramp.start 8 to batch.global 32: change it, or use batch.global 24 or 40");
  EXPECT_EQ(ramp("start: 12, increment: 8, samples: 100"),
            "demo.yaml line 5: batch.ramp.start is 12, which is not a multiple of batch.micro 8: "
            "use 8 or 16");
  EXPECT_EQ(ramp("start: 8, increment: 12, samples: 100"),
            "demo.yaml line 5: batch.ramp.increment is 12, which is not a multiple of batch.micro "
            "8: use 8 or 16");
  EXPECT_THAT(ramp("start: 8, increment: 8"),
              HasSubstr("line 5: batch.ramp has no samples: set it to the samples"));
  EXPECT_THAT(ramp("start: 8, samples: 100"),
              HasSubstr("line 5: batch.ramp has no increment: set it"));
  EXPECT_THAT(ramp("increment: 8, samples: 100"),
              HasSubstr("line 5: batch.ramp has no start: set it"));
  EXPECT_THAT(ramp("start: -8, increment: 8, samples: 100"), HasSubstr("batch.ramp.start"));
  EXPECT_THAT(ramp("start: 8, increment: 8, samples: -1"), HasSubstr("batch.ramp.samples"));
  EXPECT_THAT(ramp("start: 8, increment: 8, sample: 100"), HasSubstr("batch.ramp.sample"));
  EXPECT_THAT(error_of(kShort, {"batch={global: 2000000000, micro: 1, ramp: {start: 1, increment: "
                                "1, samples: 9}}"}),
              HasSubstr("batch.ramp.increment is 1, which makes 1999999999 increments, more than "
                        "10000: raise it"));
  EXPECT_THAT(set_error("batch.ramp=8"), HasSubstr("batch.ramp"));
  EXPECT_THAT(set_error("rampup_batch_size=8"), HasSubstr("batch.ramp.start"));
}

TEST(RunConfigReading, DataSources) {
  const RunConfig config = parse(kShort, {R"(data={
    train: [{path: store/en, tokens: 100B, max_epochs: 2}, {path: fi.txt, name: suomi, tokens: 5e9},
            {path: store/sv/, tokens: 1M}],
    valid: [{path: held-out/en}, {path: held-out/fi, name: suomi}],
    tokenizer: tokenizer.json, max_epochs: 4, document_mask: true, boundary_loss: false,
    order: kintsugi, prefetch: 7})"});
  const DataConfig& data = config.data;
  EXPECT_EQ(data.train[0].name, "en");
  EXPECT_EQ(data.train[0].tokens, 100'000'000'000);
  EXPECT_EQ(data.train[0].max_epochs, 2);
  EXPECT_EQ(data.train[1].name, "suomi");
  EXPECT_EQ(data.train[2].name, "sv");
  EXPECT_EQ(data.valid[0].name, "en");
  EXPECT_EQ(data.valid[1].path, "held-out/fi");
  EXPECT_EQ(data.tokenizer, "tokenizer.json");
  EXPECT_EQ(data.max_epochs, 4);
  EXPECT_TRUE(data.document_mask);
  EXPECT_FALSE(data.boundary_loss);
  EXPECT_EQ(data.prefetch, 7);
  EXPECT_EQ(parse(to_yaml(config)), without_origin(config));
  EXPECT_EQ(parse(kShort, {"data.order=megatron", "data.split='9,1'"}).data.split, "9,1");
}

TEST(RunConfigErrors, DataSourcesThatDisagree) {
  EXPECT_THAT(set_error("data.train=[{path: a/x}, {path: b/x.txt}]"),
              HasSubstr("data.train has two items named x: give each its own"));
  EXPECT_THAT(set_error("data.valid=[{path: a/x}, {path: b/x.txt}]"),
              HasSubstr("data.valid has two items named x"));
  EXPECT_THAT(set_error("data.valid=[{name: x}]"), HasSubstr("data.valid has an item without"));
  for (const char* list : {"[{path: a, tokens: 5}, {path: b}]", "[{path: a}, {path: b, tokens: 5}]",
                           "[{path: a, tokens: 5}, {path: b, tokens: 5, weight: 2}]"})
    EXPECT_THAT(set_error(std::string("data.train=") + list),
                HasSubstr("data.train mixes weights and tokens"))
        << list;
  EXPECT_THAT(
      error_of(kShort, {"data.temperature=3", "data.train=[{path: a, weight: 2}]"}),
      HasSubstr("data.temperature computes the weights from the sizes of the sources, but a has a "
                "weight of its own"));
  EXPECT_THAT(error_of(kShort, {"data.temperature=3", "data.train=[{path: a, tokens: 2}]"}),
              HasSubstr("but a has tokens of its own"));
  EXPECT_THAT(error_of(kShort, {"data.order=megatron", "data.max_epochs=2"}),
              HasSubstr("data.order is megatron, which does not support max_epochs"));
  EXPECT_THAT(error_of(kShort, {"data.order=megatron", "run.seed=4294967296"}),
              HasSubstr("--set run.seed=4294967296: run.seed is 4294967296, but Megatron's"));
  EXPECT_THAT(set_error("data.split=half"), HasSubstr("data.split: 'half' is not a split"));
  EXPECT_THAT(set_error("data.order=random"),
              HasSubstr("'random' is not kintsugi, megatron or megatron-0.10"));
  EXPECT_THAT(set_error("data.prefetch=0"), HasSubstr("data.prefetch is 0: it must be"));
}

TEST(RunConfigErrors, Layouts) {
  EXPECT_THAT(set_error("layout.shard_group=2"), HasSubstr("layout.zero 0 shards nothing"));
  EXPECT_THAT(set_error("layout.zero=4"), HasSubstr("layout.zero is 4"));
  EXPECT_THAT(set_error("layout.context=star"),
              HasSubstr("'star' is not a method of context parallelism: ring or ulysses"));
  EXPECT_THAT(set_error("comm.reduce=fp16"), HasSubstr("gradients are reduced in fp32 or bf16"));
  EXPECT_THAT(error_of(kShort, {"comm.reduce=bf16", "train.precision=fp64"}),
              HasSubstr("an fp64 run sums in fp64"));
  for (const char* assignment :
       {"layout.dp=8", "layout.dp=auto", "layout.zero=3", "comm.reduce=bf16", "comm.check=true",
        "layout.recompute=full", "layout.recompute=selective", "layout.tp=2", "layout.cp=2",
        "layout.context=ulysses", "layout.pp=2", "layout.chunks=2",
        "layout.sequence_parallel=true"})
    EXPECT_EQ(set_error(assignment), "no error") << assignment;
}

}  // namespace
}  // namespace kintsugi
