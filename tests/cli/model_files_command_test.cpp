// kintsugi model merge, merge-adapter, convert, diff and inspect, as a user runs them.
#include <nlohmann/json.hpp>

#include "support/directory_contents.h"
#include "support/program_test.h"
#include "support/raw_model.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class ModelFilesCommand : public ProgramTest {
 protected:
  void SetUp() override {
    make_random_model(directory_ / "a", "llama", 1, "F32", false);
    make_random_model(directory_ / "b", "llama", 2, "F32", true);
  }
  void succeed(const std::string& arguments) {
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.error;
  }
  std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      if (entry.path().extension() != ".txt") names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  // A mistake: one line, exit code 2, nothing left behind.
  std::string mistake(const std::string& arguments) {
    const auto before = names();
    const Outcome outcome = run_kintsugi(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_THAT(outcome.error, testing::StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    EXPECT_EQ(names(), before) << arguments;
    return outcome.error;
  }
};

TEST_F(ModelFilesCommand, AMergedModelCanBeScored) {
  const Outcome merged = run_kintsugi("model merge a b --output merged --weights 0.25,0.75");
  EXPECT_EQ(merged.code, 0) << merged.error;
  EXPECT_THAT(merged.out, AllOf(HasSubstr("merged: "), HasSubstr("1 file")));
  const RawModel a = read_raw_model(directory_ / "a"), b = read_raw_model(directory_ / "b"),
                 both = read_raw_model(directory_ / "merged");
  for (const auto& [name, tensor] : both)
    for (std::size_t i = 0; i < tensor.values.size(); ++i)
      ASSERT_EQ(tensor.values[i],
                static_cast<float>(0.25 * a.at(name).values[i] + 0.75 * b.at(name).values[i]));
  const Outcome scored = run_kintsugi("eval --checkpoint merged --token-ids '1 5 9' --threads 1");
  EXPECT_EQ(scored.code, 0) << scored.error;
  EXPECT_GT(json::parse(scored.out)["loss"].get<double>(), 0);
  EXPECT_THAT(names(), testing::ElementsAre("a", "b", "merged"));
  // The first and the second end of an interpolation.
  succeed("model merge a b --output s --slerp 0");
  EXPECT_EQ(run_kintsugi("model diff a s").code, 0);
  succeed("model merge a b --output s --slerp 1 --overwrite");
  EXPECT_EQ(run_kintsugi("model diff b s").code, 0);
}

TEST_F(ModelFilesCommand, TheDifferenceOfAConversionIsItsRounding) {
  succeed("model convert a --output c --dtype bf16 --max-shard-size 20kB");
  EXPECT_TRUE(fs::exists(directory_ / "c/model.safetensors.index.json"));
  const Outcome outcome = run_kintsugi("model diff a c --json");
  EXPECT_EQ(outcome.code, 1) << outcome.error;
  const json difference = json::parse(outcome.out);
  EXPECT_EQ(difference["equal"], false);
  EXPECT_EQ(difference["config"]["dtype"]["second"], "bfloat16");
  const RawModel model = read_raw_model(directory_ / "a");
  EXPECT_EQ(difference["tensors"].size(), model.size());
  for (const json& tensor : difference["tensors"]) {
    double largest = 0, bound = 0, squares = 0;  // bound: half a unit in the last place of bf16
    const std::vector<double>& values = model.at(tensor["name"]).values;
    for (const double value : values) {
      int exponent = 0;
      std::frexp(value, &exponent);
      bound = std::max(bound, std::ldexp(0.5, exponent - 8));
      largest = std::max(largest, std::fabs(value - nearest_with_bits(value, 8)));
      squares += value * value;
    }
    const double rms = std::sqrt(squares / static_cast<double>(values.size()));
    EXPECT_LE(tensor["max_difference"], bound);
    EXPECT_EQ(tensor["max_difference"], largest) << tensor["name"];
    EXPECT_NEAR(tensor["rms"].get<double>(), rms, 1e-12);
    EXPECT_NEAR(tensor["relative"].get<double>(), largest / rms, 1e-12);
    EXPECT_EQ(tensor["first"]["dtype"], "F32");
    EXPECT_EQ(tensor["second"]["dtype"], "BF16");
  }
  EXPECT_THAT(run_kintsugi("model diff a c").out,
              AllOf(HasSubstr("config.json: dtype: \"float32\" | \"bfloat16\""),
                    HasSubstr("F32 | BF16"), HasSubstr("relative")));
}

TEST_F(ModelFilesCommand, DiffAnswersWithItsExitCode) {
  const Outcome same = run_kintsugi("model diff a a");
  EXPECT_EQ(same.code, 0) << same.error;
  EXPECT_THAT(same.out, HasSubstr("equal"));
  succeed("model convert a --output c");
  EXPECT_EQ(run_kintsugi("model diff a c").code, 0);
  RawModel model = read_raw_model(directory_ / "c");
  const std::string moved = model.begin()->first, changed = model.rbegin()->first;
  model["extra"] = model[moved];
  model.erase(moved);
  model[changed].values[3] += 1;
  write_raw_model(directory_ / "c", model, false);
  const Outcome other = run_kintsugi("model diff a c");
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.error, "");
  EXPECT_THAT(other.out, AllOf(HasSubstr("only in a: " + moved), HasSubstr("only in c: extra"),
                               HasSubstr("1 of "), HasSubstr(changed)));
  mistake("model diff a nosuch");
}

TEST_F(ModelFilesCommand, InspectListsTensors) {
  RawModel model = read_raw_model(directory_ / "a");
  const std::string name = model.begin()->first;
  std::vector<double>& values = model[name].values;
  std::fill(values.begin(), values.end(), 0.0);
  values[0] = 3;
  values[1] = -1;
  values[2] = std::numeric_limits<double>::quiet_NaN();
  write_raw_model(directory_ / "a", model, false);
  const auto n = static_cast<double>(values.size());
  const json plain = json::parse(run_kintsugi("model inspect a --json").out);
  EXPECT_EQ(plain["family"], "llama");
  EXPECT_EQ(plain["training"], nullptr);
  EXPECT_EQ(plain["tensors"].size(), model.size());
  EXPECT_FALSE(plain["tensors"][0].contains("mean"));
  std::int64_t parameters = 0;
  for (const auto& [key, tensor] : model)
    parameters += static_cast<std::int64_t>(tensor.values.size());
  EXPECT_EQ(plain["parameters"], parameters);
  EXPECT_EQ(plain["dtypes"]["F32"], parameters);
  const json all = json::parse(run_kintsugi("model inspect a --json --statistics").out);
  for (const json& tensor : all["tensors"]) {
    if (tensor["name"] != name) continue;
    EXPECT_EQ(tensor["min"], -1);
    EXPECT_EQ(tensor["max"], 3);
    EXPECT_NEAR(tensor["mean"].get<double>(), 2 / (n - 1), 1e-15);
    EXPECT_NEAR(tensor["rms"].get<double>(), std::sqrt(10 / (n - 1)), 1e-15);
    EXPECT_NEAR(tensor["non_finite"].get<double>(), 1 / n, 1e-15);
  }
  EXPECT_THAT(run_kintsugi("model inspect b --statistics").out,
              AllOf(HasSubstr("llama"), HasSubstr("RMS"), HasSubstr("model-1.safetensors")));
  EXPECT_THAT(mistake("model inspect nosuch"), HasSubstr("nosuch"));
}

TEST_F(ModelFilesCommand, TakesRunDirectories) {
  const std::string corpus = directory_.write("corpus.txt", small_corpus(100));
  directory_.write("run.yaml", small_config(corpus, directory_ / "run", "steps: 3"));
  succeed("train run.yaml");
  const json state = json::parse(run_kintsugi("model inspect run --json").out)["training"];
  EXPECT_EQ(state["step"], 3);
  EXPECT_GT(state["tokens"], 0);
  succeed("model merge run run/checkpoints/latest --output merged --dtype fp32");
  EXPECT_TRUE(fs::exists(directory_ / "merged/tokenizer_config.json"));
  EXPECT_FALSE(fs::exists(directory_ / "merged/trainer.json"));
  EXPECT_EQ(run_kintsugi("model diff run merged").code, 0);
  const std::string eval = " --text 'some words' --threads 1";
  const Outcome scored = run_kintsugi("eval --checkpoint merged" + eval);
  EXPECT_EQ(scored.code, 0) << scored.error;
  EXPECT_EQ(scored.out, run_kintsugi("eval --checkpoint run" + eval).out);
}

// An adapter of PEFT beside its base model "a".
TEST_F(ModelFilesCommand, AdaptersAreMergedScoredAndInspected) {
  const fs::path source = fs::path(test_data_directory()) / "finetune/lora-rs";
  fs::create_directory(directory_ / "lora");
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
    fs::copy_file(source / name, directory_ / "lora" / name);
  succeed("model merge-adapter lora --base a --output merged");
  const std::string eval = " --token-ids '1 5 9 11' --threads 1 --logprobs";
  const auto scores = [&](const std::string& arguments) {
    const Outcome scored = run_kintsugi("eval " + arguments + eval);
    EXPECT_EQ(scored.code, 0) << scored.error;
    return json::parse(scored.out).get<std::vector<double>>();
  };
  const std::vector<double> merged = scores("--checkpoint merged"), base = scores("--checkpoint a"),
                            together = scores("--checkpoint a --adapter lora");
  for (std::size_t i = 0; i < merged.size(); ++i) EXPECT_NEAR(together[i], merged[i], 1e-5);
  EXPECT_NE(base, merged);
  EXPECT_THAT(mistake("model merge-adapter lora --output x"),
              AllOf(HasSubstr("'llama'"), HasSubstr("--base")));
  EXPECT_THAT(mistake("generate --checkpoint lora --token-ids 1"), HasSubstr("--adapter"));
  // Also if the adapter names its base.
  json config = json::parse(content_of("lora/adapter_config.json"));
  config["base_model_name_or_path"] = "../a";
  directory_.write("lora/adapter_config.json", config.dump());
  EXPECT_EQ(scores("--checkpoint lora"), together);
  const std::string generate = " --token-ids '1 5' --max-tokens 4 --temperature 0 --threads 1";
  const Outcome text = run_kintsugi("generate --checkpoint lora" + generate);
  EXPECT_EQ(text.code, 0) << text.error;
  EXPECT_EQ(text.out, run_kintsugi("generate --checkpoint merged" + generate).out);
  EXPECT_THAT(run_kintsugi("model lora").out,
              AllOf(HasSubstr("q_proj, v_proj"), HasSubstr("../a"), HasSubstr("sqrt(r)")));
  const json inspected = json::parse(run_kintsugi("model inspect lora --json").out);
  EXPECT_EQ(inspected["r"], 4);
  EXPECT_EQ(inspected["parameters"], 2 * (2 * 4 * 32 + 4 * 32 + 4 * 16));
  EXPECT_EQ(inspected["tensors"].size(), 8u);
  EXPECT_THAT(mistake("model diff lora a"), HasSubstr("merge-adapter"));
}

TEST_F(ModelFilesCommand, RefusesNonsense) {
  EXPECT_THAT(mistake("model merge a --output x"), HasSubstr("convert"));
  EXPECT_THAT(mistake("model merge a b"), HasSubstr("--output"));
  EXPECT_THAT(mistake("model merge a b --output x --slerp 1.5"), HasSubstr("1.5"));
  EXPECT_THAT(mistake("model merge a b --output x --slerp 0.5 --weights 1,0"),
              HasSubstr("--weights"));
  EXPECT_THAT(mistake("model merge a b --output x --weights 1,nan"), HasSubstr("nan"));
  EXPECT_THAT(mistake("model merge a b --output x --weights 1,"), HasSubstr("--weights"));
  EXPECT_THAT(mistake("model merge a b --output x --dtype int8"), HasSubstr("int8"));
  EXPECT_THAT(mistake("model merge a b --output x --max-shard-size 0"), HasSubstr("shard"));
  EXPECT_THAT(mistake("model merge a b --output b"), HasSubstr("replace"));
  EXPECT_THAT(mistake("model convert a --output ./nosuch/x"), HasSubstr("nosuch"));
  EXPECT_THAT(mistake("model nosuch"), HasSubstr("'nosuch'"));
  EXPECT_THAT(mistake("model mrege a b --output x"), HasSubstr("did you mean 'merge'"));
}

// A limit of the file size stands for a full disk.
TEST_F(ModelFilesCommand, AFullDiskLeavesNothing) {
  const auto before = names();
  const Outcome outcome =
      run_in_shell("ulimit -f 40 && \"$kintsugi\" model merge a b --output merged");
  EXPECT_EQ(outcome.code, 1) << outcome.error;
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("error: cannot write"), HasSubstr("model")));
  EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
  EXPECT_EQ(names(), before);
}

TEST_F(ModelFilesCommand, KeepsTheOldCommands) {
  EXPECT_THAT(run_kintsugi("model ./a").out, HasSubstr("hidden_size"));
  EXPECT_THAT(run_kintsugi("model llama-8b").out, HasSubstr("8,030,261,248"));
  EXPECT_THAT(run_kintsugi("model --list").out, HasSubstr("llama-8b"));
  EXPECT_EQ(json::parse(run_kintsugi("model gpt2-124m --json").out)["name"], "gpt2-124m");
  for (const char* command : {"merge", "convert", "upcycle", "diff", "inspect"}) {
    fs::copy(directory_ / "a", directory_ / command, fs::copy_options::recursive);
    EXPECT_THAT(run_kintsugi("model ./" + std::string(command)).out, HasSubstr("hidden_size"));
    EXPECT_THAT(run_kintsugi("model " + std::string(command) + " --help").out,
                HasSubstr("Example"));
  }
}

TEST_F(ModelFilesCommand, ImportsACheckpoint) {
  const std::string data = test_data_directory(),
                    from = "model import " + data + "/import/dcp-llama --output imported ",
                    model = "--model " + data + "/llama ";
  EXPECT_THAT(mistake(from), HasSubstr("--model"));
  EXPECT_THAT(mistake(from + model + "--format zarr"), HasSubstr("zarr"));
  EXPECT_THAT(mistake(from + model + "--format megatron"), HasSubstr("mp_rank_"));
  EXPECT_THAT(mistake(from + model + "--tokenizer a"), HasSubstr("tokenizer"));
  EXPECT_THAT(mistake(from + "--model llama-8b"), HasSubstr("[67, 32]"));
  EXPECT_THAT(mistake("model import a --output imported " + model), HasSubstr("no .metadata"));
  EXPECT_THAT(mistake("model import nothing --output imported " + model),
              HasSubstr("is no directory"));
  const Outcome outcome = run_kintsugi(from + model);
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("optimizer state and the data position are left out"));
  EXPECT_THAT(mistake(from + model), HasSubstr("--overwrite"));
  const std::string score = " --token-ids '1 5 9 33 7 64' --threads 1";
  const Outcome mine = run_kintsugi("eval --checkpoint imported" + score),
                theirs = run_kintsugi("eval --checkpoint " + data + "/llama" + score);
  EXPECT_EQ(mine.code, 0) << mine.error;
  EXPECT_EQ(json::parse(mine.out)["loss"], json::parse(theirs.out)["loss"]);
}

}  // namespace
}  // namespace kintsugi
