// Which weights are computed with: damaged files, left-over tensors, other base weights, other
// tokenizers. tests/cli/ranks_agree_test.cpp has those that differ between ranks.
#include <functional>
#include <nlohmann/json.hpp>

#include "support/large_tensors.h"
#include "support/program_test.h"
#include "support/raw_model.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class WeightFiles : public ProgramTest {
 protected:
  void SetUp() override {
    directory_.write("corpus.txt", small_corpus(100));
    directory_.write("base.yaml", small_config("corpus.txt", "run", "steps: 2, eval_every: 0"));
    succeed("train base.yaml --set model.ffn_size=600");
    fs::copy(directory_ / "run/checkpoints/latest/", directory_ / "base");
  }
  Outcome succeed(const std::string& arguments) {
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.error;
    return outcome;
  }
  // One line of error and nothing on standard output.
  std::string refused(const std::string& arguments, const std::string& input = "") {
    const Outcome outcome = run_kintsugi(arguments, input);
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.error;
    EXPECT_THAT(outcome.error, HasSubstr("error: ")) << arguments;
    return outcome.error;
  }
  void copy(const std::string& from, const std::string& to) {
    fs::copy(directory_ / from, directory_ / to, fs::copy_options::recursive);
  }
  // A copy of the base with other large tensors, without checksums.
  void make_other_base() {
    copy("base", "other");
    negate_large_tensors(directory_ / "other/model.safetensors");
    fs::remove(directory_ / "other/checksums.json");
  }
  void flip_bit(const std::string& name) {
    std::string bytes = content_of(name);
    bytes[bytes.size() / 2 + 3] ^= 0x20;
    directory_.write(name, bytes);
  }
  // A run that trains adapters of `base`, or one that trains all weights from `base`.
  void write_run(const std::string& name, const std::string& base, const std::string& keys) {
    directory_.write(name + ".yaml",
                     fmt::format("run: {{dir: {}, seed: 3}}\nmodel: {{init: {}}}\n"
                                 "data: {{train: [{{path: corpus.txt}}], sequence_length: 24}}\n"
                                 "batch: {{global: 2, micro: 2}}\noptimizer: {{warmup_steps: 0}}\n"
                                 "train: {{steps: 1, eval_every: 0}}\n{}",
                                 name, base, keys));
  }
  void train_adapter() {
    write_run("lora", "base", "adapter: {kind: lora, r: 2, targets: [q_proj]}\n");
    succeed("train lora.yaml");
  }
};

constexpr const char* kScore = "eval --text 'the river' --threads 1 --checkpoint ";

// ---- fingerprints

TEST_F(WeightFiles, ALoraRunDoesNotContinueOnOtherBaseWeights) {
  train_adapter();
  make_other_base();
  EXPECT_THAT(refused("train lora.yaml --set train.steps=2 --set model.init=other"),
              AllOf(HasSubstr("other"), HasSubstr("are not those that the adapters")));
  // A copy without checksums is the same model.
  copy("base", "copy");
  fs::remove(directory_ / "copy/checksums.json");
  succeed("train lora.yaml --set train.steps=2 --set model.init=copy");
}

TEST_F(WeightFiles, AnAdapterOfOtherWeightsIsRefused) {
  train_adapter();
  make_other_base();
  const std::string options = std::string(kScore) + "other --adapter lora";
  for (const std::string& command :
       {options, std::string("generate --token-ids 1 --checkpoint other --adapter lora"),
        std::string("model merge-adapter lora --base other --output merged")})
    EXPECT_THAT(refused(command),
                AllOf(HasSubstr("was trained on other weights"), HasSubstr("--allow-other-base")));
  EXPECT_FALSE(fs::exists(directory_ / "merged"));
  EXPECT_THAT(succeed(options + " --allow-other-base").error, HasSubstr("warning: "));
  EXPECT_THAT(succeed(std::string(kScore) + "base --adapter lora").error, Not(HasSubstr("warn")));
  // Without a record, the name of the base is all that is known.
  copy("lora/checkpoints/latest", "peft");
  fs::remove(directory_ / "peft/trainer.json");
  EXPECT_THAT(succeed(std::string(kScore) + "other --adapter peft").error,
              AllOf(HasSubstr("warning: "), HasSubstr("whose weights are not those in other")));
  EXPECT_THAT(succeed(std::string(kScore) + "base --adapter peft").error, Not(HasSubstr("warn")));
}

// ---- checksums

TEST_F(WeightFiles, ADamagedFileIsRefusedByEveryCommand) {
  copy("base", "bad");
  flip_bit("bad/model.safetensors");
  directory_.write("texts.txt", "the river\n");
  write_run("init", "bad", "");
  for (const std::string& command :
       {std::string(kScore) + "bad", std::string("generate --checkpoint bad --prompt the"),
        std::string("chat --checkpoint bad --chat-template chatml"),
        std::string("embed --checkpoint bad --input texts.txt --output e.jsonl"),
        std::string("serve --checkpoint bad --port 0"),
        std::string("model convert bad --output new"),
        std::string("model merge base bad --output new"), std::string("model diff base bad"),
        std::string("model inspect bad --statistics"), std::string("train init.yaml")}) {
    const Outcome outcome = run_in_shell("echo hello | timeout 10 \"$kintsugi\" " + command);
    EXPECT_EQ(outcome.code, 2) << command << "\n" << outcome.error;
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("bad/model.safetensors does not match its checksum"),
                                     HasSubstr("copy it again")))
        << command;
  }
  EXPECT_FALSE(fs::exists(directory_ / "new"));
  EXPECT_FALSE(fs::exists(directory_ / "e.jsonl"));
  // Weights that were changed on purpose.
  fs::remove(directory_ / "bad/checksums.json");
  succeed(std::string(kScore) + "bad");
}

TEST_F(WeightFiles, ADamagedAdapterIsRefused) {
  train_adapter();
  copy("lora/checkpoints/latest", "bad");
  flip_bit("bad/adapter_model.safetensors");
  write_run("init", "base", "adapter: {kind: lora, init: bad}\n");
  for (const std::string& command :
       {std::string(kScore) + "base --adapter bad",
        std::string("model merge-adapter bad --base base --output new"),
        std::string("train init.yaml")})
    EXPECT_THAT(refused(command),
                HasSubstr("bad/adapter_model.safetensors does not match its checksum"));
  EXPECT_FALSE(fs::exists(directory_ / "new"));
}

TEST_F(WeightFiles, ChecksumsNameFilesOfTheirDirectoryOnly) {
  directory_.write("outside.bin", "12345678");
  const json original = json::parse(content_of("base/checksums.json"));
  for (const std::string& name :
       {std::string("../outside.bin"), (directory_ / "outside.bin").string(), std::string("a/.."),
        std::string("./model.safetensors"), std::string(""), std::string(256, 'a')}) {
    json list = original;
    list["pieces"][name] = json::array({json::array({0, 8, "0123456789abcdef"})});
    directory_.write("base/checksums.json", list.dump());
    EXPECT_THAT(refused(std::string(kScore) + "base"),
                AllOf(HasSubstr("base/checksums.json names '" + name + "'"),
                      HasSubstr("not a file in its directory")));
  }
  // Also when a run continues: it falls back, and says why.
  json list = json::parse(content_of("run/checkpoints/latest/checksums.json"));
  list["files"]["../../outside.bin"] = "0123456789abcdef";
  directory_.write("run/checkpoints/latest/checksums.json", list.dump());
  EXPECT_THAT(run_kintsugi("train base.yaml --set model.ffn_size=600 --set train.steps=3").error,
              HasSubstr("names '../../outside.bin', which is not a file in its directory"));
}

// ---- left-over tensors

TEST_F(WeightFiles, LeftOverTensorsAreRefused) {
  // One layer less.
  copy("base", "short");
  json config = json::parse(content_of("short/config.json"));
  config["num_hidden_layers"] = 1;
  directory_.write("short/config.json", config.dump());
  // A bias that the family does not have.
  copy("base", "biased");
  fs::remove(directory_ / "biased/checksums.json");
  RawModel model = read_raw_model(directory_ / "biased");
  const std::string bias = "model.layers.0.self_attn.q_proj.bias";
  model[bias] = {"F32", {32}, std::vector<double>(32, 1.0)};
  write_raw_model(directory_ / "biased", model, false);
  for (const auto& [name, tensor] :
       {std::pair("short", "model.layers.1."), std::pair("biased", bias.c_str())}) {
    for (const std::string& command :
         {std::string(kScore) + name, fmt::format("generate --prompt the --checkpoint {}", name)})
      EXPECT_THAT(refused(command), AllOf(HasSubstr("does not use"), HasSubstr(tensor),
                                          HasSubstr("--allow-unused-weights")));
    EXPECT_THAT(succeed(kScore + std::string(name) + " --allow-unused-weights").error,
                AllOf(HasSubstr(tensor), HasSubstr("are ignored")));
    write_run("init", name, "");
    EXPECT_THAT(refused("train init.yaml"),
                AllOf(HasSubstr(tensor), HasSubstr("model.allow_unused_weights: true")));
    EXPECT_FALSE(fs::exists(directory_ / "init"));
    succeed("train init.yaml --set model.allow_unused_weights=true");
    fs::remove_all(directory_ / "init");
  }
}

TEST_F(WeightFiles, BuffersAndCopiesOfATiedHeadAreNotLeftOver) {
  const auto make = [&](const std::string& family, const std::string& name,
                        const std::function<void(RawModel&)>& change) {
    make_random_model(directory_ / name, family, 1, "F32", false);
    RawModel model = read_raw_model(directory_ / name);
    change(model);
    write_raw_model(directory_ / name, model, false);
    return run_kintsugi("eval --token-ids '1 2 3' --threads 1 --checkpoint " + name);
  };
  EXPECT_EQ(make("llama-tied", "buffer",
                 [](RawModel& model) {
                   model["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {1}, {1.0}};
                 })
                .code,
            0);
  EXPECT_EQ(make("gpt2", "mask",
                 [](RawModel& model) {
                   model["transformer.h.0.attn.bias"] = {"F32", {1, 1}, {1.0}};
                   model["transformer.h.0.attn.masked_bias"] = {"F32", {1}, {-1e4}};
                 })
                .code,
            0);
  EXPECT_EQ(
      make("llama-tied", "copied",
           [](RawModel& model) { model["lm_head.weight"] = model["model.embed_tokens.weight"]; })
          .code,
      0);
  const Outcome other = make("llama-tied", "head", [](RawModel& model) {
    model["lm_head.weight"] = model["model.embed_tokens.weight"];
    model["lm_head.weight"].values[0] += 1;
  });
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.error, HasSubstr("lm_head.weight"));
}

// ---- tokenizers

TEST_F(WeightFiles, MergedModelsHaveOneTokenizer) {
  copy("base", "swapped");
  json tokenizer = json::parse(content_of("swapped/tokenizer.json"));
  std::swap(tokenizer["model"]["vocab"]["e"], tokenizer["model"]["vocab"]["t"]);
  directory_.write("swapped/tokenizer.json", tokenizer.dump());
  EXPECT_THAT(
      refused("model merge base swapped --output new"),
      AllOf(HasSubstr("swapped has another tokenizer"), HasSubstr("--allow-other-tokenizer")));
  EXPECT_FALSE(fs::exists(directory_ / "new"));
  EXPECT_THAT(succeed("model merge base swapped --output new --allow-other-tokenizer").error,
              HasSubstr("warning: "));
  succeed("model merge base base --output same");
}

}  // namespace
}  // namespace kintsugi
