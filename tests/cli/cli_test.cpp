// The real program: exit codes, outputs and files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_backend.h"
#include "support/loaded_model.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

const fs::path kData = test_data_directory();

struct CommandResult {
  int code;
  std::string out, error;
};

class CommandTest : public testing::Test {
 protected:
  // Runs `kintsugi arguments` inside the temporary directory.
  CommandResult run(const std::vector<std::string>& arguments) {
    std::string command = "cd '" + directory_.path().string() + "' && '" + kintsugi_binary() + "'";
    for (const std::string& argument : arguments) command += " '" + argument + "'";
    const int status = std::system((command + " >stdout.txt 2>stderr.txt </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(directory_ / "stdout.txt"),
            content_of(directory_ / "stderr.txt")};
  }

  // A user's mistake: exit code 2, one line on standard error, nothing on standard output.
  std::string mistake(const std::vector<std::string>& arguments) {
    const CommandResult outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.error;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.error, StartsWith("error: "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    EXPECT_THAT(outcome.error, testing::EndsWith("\n"));
    return outcome.error;
  }

  TemporaryDirectory directory_;
};

// ---- the program itself

// All of core/exit_code.h.
TEST_F(CommandTest, HelpListsEveryExitCode) {
  const std::string help = run({"--help"}).out;
  const std::size_t codes = help.find("Exit codes: ");
  ASSERT_NE(codes, std::string::npos);
  for (const char* code : {"0 success", "1 failure", "2 a mistake", "3 the training diverged",
                           "4 a job without progress", "75 stopped on request"})
    EXPECT_THAT(help.substr(codes), HasSubstr(code));
}

TEST_F(CommandTest, HelpHasAnExample) {
  const CommandResult help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("train"), HasSubstr("generate"), HasSubstr("eval"),
                              HasSubstr("model"), HasSubstr("Exit codes"), HasSubstr("example")));
  for (const char* command : {"train", "generate", "eval", "model"}) {
    const CommandResult outcome = run({command, "--help"});
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("Example"), HasSubstr("  kintsugi " + std::string(command) + " ")));
    EXPECT_EQ(outcome.error, "");
  }
}

TEST_F(CommandTest, Version) {
  const CommandResult outcome = run({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out,
              testing::MatchesRegex("kintsugi [0-9]+\\.[0-9]+\\.[0-9]+ \\(commit [^)]+\\)\n"
                                    "compiler: .+\n"
                                    "backends: cpu \\(OpenBLAS [0-9.]+\\), gpu \\(.+\\), sim\n"
                                    "communication: MPI \\(.+\\), NCCL \\(.+\\)\n"
                                    "libraries: fmt [0-9.]+, .*yaml-cpp [0-9.]+.*\n"
                                    "left out: .+\n"));
}

TEST_F(CommandTest, WrongCommandLines) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& offender) {
    const CommandResult outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << offender;
    EXPECT_EQ(outcome.out, "") << offender;
    EXPECT_THAT(outcome.error, AllOf(HasSubstr(offender), HasSubstr("--help")));
  };
  refused({}, "command");
  refused({"nosuch"}, "nosuch");
  refused({"--nosuch"}, "--nosuch");
  refused({"model", "--nosuch"}, "--nosuch");
  refused({"eval", "--token-ids", "1 2"}, "--checkpoint");
  refused({"generate", "--checkpoint", ".", "--prompt", "a", "--token-ids", "1"}, "--prompt");
  refused({"generate", "--checkpoint", ".", "--prompt", "a", "--top-p", "1.5"}, "1.5");
  refused({"generate", "--checkpoint", ".", "--prompt", "a", "--max-tokens", "0"}, "max-tokens");
  refused({"train"}, "config");
  refused({"train", "a.yaml", "--resume", "maybe"}, "maybe");
}

// ---- kintsugi model

TEST_F(CommandTest, DescribesModels) {
  const CommandResult table = run({"model", "llama-8b"});
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.out, HasSubstr("8,030,261,248")) << "Llama 3.1 8B as its authors count it";
  EXPECT_EQ(json::parse(run({"model", "llama-8b", "--json"}).out)["parameters"]["total"],
            8'030'261'248);
  EXPECT_THAT(run({"model", "--list"}).out, HasSubstr("llama-8b"));
  const json list = json::parse(run({"model", "--list", "--json"}).out);
  EXPECT_NE(std::find(list.begin(), list.end(), "gpt2-124m"), list.end());
  EXPECT_EQ(
      json::parse(run({"model", (kData / "qwen3").string(), "--json"}).out)["config"]["family"],
      "qwen3");
}

TEST_F(CommandTest, SuggestsAModel) {
  EXPECT_THAT(mistake({"model", "nosuch"}), AllOf(HasSubstr("'nosuch'"), HasSubstr("--list")));
  EXPECT_THAT(mistake({"model", "lama-8b"}), HasSubstr("did you mean 'llama-8b'"));
  mistake({"model"});
}

// ---- kintsugi eval and generate

TEST_F(CommandTest, ScoresAsTheLibraryDoes) {
  const std::vector<std::string> eval = {
      "eval", "--checkpoint", (kData / "llama").string(), "--token-ids", "1 5 9", "--threads", "1"};
  auto arguments = eval;
  arguments.push_back("--logprobs");
  const CommandResult outcome = run(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  const auto printed = json::parse(outcome.out).get<std::vector<double>>();
  const auto expected = LoadedModel(kData / "llama").log_probabilities({1, 5, 9});
  ASSERT_EQ(printed.size(), 2u);
  for (int i = 0; i < 2; ++i) EXPECT_NEAR(printed[i], expected[i], 1e-4);

  const json summary = json::parse(run(eval).out);
  EXPECT_EQ(summary["tokens"], 2);
  EXPECT_NEAR(summary["loss"].get<double>(), -(expected[0] + expected[1]) / 2, 1e-4);
  EXPECT_NEAR(summary["perplexity"].get<double>(), std::exp(-(expected[0] + expected[1]) / 2), 0.1);
  EXPECT_EQ(run({"eval", "--checkpoint", (kData / "llama-sharded").string(), "--token-ids", "1,5,9",
                 "--threads", "1"})
                .out,
            run(eval).out);
}

// A model with weights that are not finite: a failure in one line, and no partial output.
TEST_F(CommandTest, AModelThatIsNotFiniteIsAFailure) {
  const auto model_of = [&](const char* name, const std::function<float(float)>& change) {
    const fs::path directory = directory_ / name;
    fs::create_directories(directory);
    fs::copy_file(kData / "llama" / "config.json", directory / "config.json");
    std::string file = content_of(kData / "llama" / "model.safetensors");
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    for (std::size_t at = 8 + header; at + 4 <= file.size(); at += 4) {
      float value = 0;
      std::memcpy(&value, file.data() + at, sizeof value);
      value = change(value);
      std::memcpy(file.data() + at, &value, sizeof value);
    }
    directory_.write(std::string(name) + "/model.safetensors", file);
    return directory.string();
  };
  const std::string nan = model_of("nan", [](float) { return std::nanf(""); });
  for (const std::vector<std::string>& command : {std::vector<std::string>{"eval"},
                                                  {"eval", "--logprobs"},
                                                  {"generate"},
                                                  {"generate", "--temperature", "0"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(),
                     {"--checkpoint", nan, "--token-ids", "1 5 9", "--threads", "1"});
    const CommandResult outcome = run(arguments);
    EXPECT_EQ(outcome.code, 1) << command.front();
    EXPECT_EQ(outcome.out, "") << command.front();
    EXPECT_THAT(outcome.error, AllOf(StartsWith("error: "), HasSubstr("NaN"),
                                     HasSubstr("weights are not finite")));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
  }
  // Above a loss of 709 the perplexity overflows; the loss is still valid.
  const std::string large = model_of("large", [](float value) { return value * 300; });
  const CommandResult outcome =
      run({"eval", "--checkpoint", large, "--token-ids", "1 5 9 2 7", "--threads", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  const json summary = json::parse(outcome.out);
  EXPECT_GT(summary.at("loss").get<double>(), 710);
  EXPECT_TRUE(summary.at("perplexity").is_null());
}

TEST_F(CommandTest, RefusesTokensThatAreNone) {
  const auto error = [&](const std::string& ids) {
    return mistake(
        {"eval", "--checkpoint", (kData / "llama").string(), "--token-ids", ids, "--logprobs"});
  };
  EXPECT_THAT(error("1 x 3"), HasSubstr("'1 x 3'"));
  EXPECT_THAT(error("1 2.5"), HasSubstr("'1 2.5'"));
  EXPECT_THAT(error("1 99999999999"), HasSubstr("99999999999"));
  EXPECT_THAT(error("1 67"), AllOf(HasSubstr("67"), HasSubstr("vocabulary")));
  EXPECT_THAT(error("-1 3"), HasSubstr("-1"));
  EXPECT_THAT(error("4"), HasSubstr("at least two"));
  EXPECT_THAT(
      mistake({"generate", "--checkpoint", (kData / "llama").string(), "--token-ids", "5 70"}),
      HasSubstr("70"));
  EXPECT_THAT(mistake({"generate", "--checkpoint", (kData / "gpt2").string(), "--token-ids", "5",
                       "--max-tokens", "70"}),
              HasSubstr("64 positions"));
  EXPECT_THAT(mistake({"generate", "--checkpoint", (kData / "llama").string(), "--prompt", "text"}),
              HasSubstr("--token-ids"));
  EXPECT_THAT(mistake({"generate", "--checkpoint", (kData / "llama").string()}),
              HasSubstr("--prompt"));
  EXPECT_THAT(mistake({"eval", "--checkpoint", (kData / "llama").string(), "--token-ids", "1 2",
                       "--precision", "fp8"}),
              HasSubstr("'fp8'"));
}

TEST_F(CommandTest, GeneratesTokens) {
  const std::vector<std::string> command = {"generate",
                                            "--checkpoint",
                                            (kData / "llama").string(),
                                            "--token-ids",
                                            "7",
                                            "--max-tokens",
                                            "5",
                                            "--temperature",
                                            "0",
                                            "--threads",
                                            "1"};
  const CommandResult outcome = run(command);
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  std::istringstream words(outcome.out);
  std::vector<std::int32_t> printed, expected;
  for (std::int32_t token = 0; words >> token;) printed.push_back(token);
  expected = LoadedModel(kData / "llama").generate({7}, 5);
  EXPECT_EQ(printed, expected);
  EXPECT_FALSE(printed.empty());
}

// ---- damaged models

class DamagedModelTest : public CommandTest {
 protected:
  std::string score() { return mistake({"eval", "--checkpoint", "model", "--token-ids", "1 5 9"}); }
  void copy(const char* fixture) {
    fs::remove_all(directory_ / "model");
    fs::copy(kData / fixture, directory_ / "model");
  }
  void write(const std::string& file, const std::string& content) {
    directory_.write("model/" + file, content);
  }
};

TEST_F(DamagedModelTest, MissingFilesAreNamed) {
  EXPECT_THAT(mistake({"eval", "--checkpoint", "nowhere", "--token-ids", "1 2"}),
              HasSubstr("nowhere"));
  copy("llama-sharded");
  fs::remove(directory_ / "model" / "model-00002-of-00003.safetensors");
  EXPECT_THAT(score(), HasSubstr("model-00002-of-00003.safetensors"));
  copy("llama");
  fs::remove(directory_ / "model" / "model.safetensors");
  EXPECT_THAT(score(), HasSubstr("model"));
  copy("llama");
  fs::remove(directory_ / "model" / "config.json");
  EXPECT_THAT(score(), HasSubstr("config.json"));
  copy("llama");
  write("config.json", "{\"model_type\": \"llama\",");
  EXPECT_THAT(score(), HasSubstr("config.json"));
}

TEST_F(DamagedModelTest, SafetensorsOfEveryKindOfDamage) {
  const std::string file = content_of(kData / "llama" / "model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const json header = json::parse(file.substr(8, length));
  const std::string data = file.substr(8 + length);
  const auto number = [](std::uint64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), 8);
  };
  const auto with = [&](const json& changed) {
    const std::string text = changed.dump();
    return number(text.size()) + text + data;
  };
  const std::string tensor = "model.embed_tokens.weight",
                    matrix = "model.layers.0.mlp.gate_proj.weight";
  const auto change = [&](const std::string& name, const char* key, const json& value) {
    json changed = header;
    changed[name][key] = value;
    return with(changed);
  };
  json renamed = header;
  renamed["another.name"] = renamed[matrix];
  renamed.erase(matrix);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "model.safetensors"},
      {file.substr(0, 5), "model.safetensors"},
      {number(~0ull) + file.substr(8), "model.safetensors"},
      {number(file.size()) + file.substr(8), "model.safetensors"},
      {number(length - 1) + file.substr(8), "model.safetensors"},
      {file.substr(0, 8) + "not json" + file.substr(16), "model.safetensors"},
      {number(2) + "[]" + data, "model.safetensors"},
      {file.substr(0, file.size() - 10), "model.norm.weight"},
      {file + "tail", "model.safetensors"},
      {change(tensor, "data_offsets", header[matrix]["data_offsets"]), "model.safetensors"},
      {change(tensor, "data_offsets", {0, -8}), tensor},
      {change(tensor, "data_offsets", "none"), tensor},
      {change(tensor, "dtype", "BOOL"), tensor},
      {change(tensor, "dtype", "I32"), tensor},
      {change(tensor, "dtype", "F7"), tensor},
      {change(tensor, "dtype", 32), tensor},
      {change(tensor, "shape", {-1, 2}), tensor},
      {change(tensor, "shape", {1ull << 40, 1ull << 40}), tensor},
      {change(matrix, "shape", {32, 56}), matrix},
      {with(renamed), matrix},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    copy("llama");
    write("model.safetensors", cases[i].first);
    EXPECT_THAT(score(), HasSubstr(cases[i].second));
  }
  copy("llama");
  EXPECT_EQ(run({"eval", "--checkpoint", "model", "--token-ids", "1 5 9"}).code, 0)
      << "the undamaged copy works";
}

// ---- kintsugi train

class TrainCommandTest : public CommandTest {
 protected:
  TrainCommandTest() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "Line " + std::to_string(i) + " of a small text.\n";
    directory_.write("corpus.txt", text);
    directory_.write("empty.txt", "");
    directory_.write(
        "run.yaml",
        "run: {dir: out, seed: 3}\n"
        "model: {preset: gpt2-tiny, hidden_size: 32, layers: 1, heads: 2, max_positions: 64}\n"
        "data: {train: [{path: corpus.txt}], valid_fraction: 0.1, sequence_length: 16}\n"
        "batch: {global: 4, micro: 2}\n"
        "optimizer: {warmup_steps: 1}\n"
        "train: {steps: 3, eval_every: 2, checkpoint_every: 0}\n"
        "device: cpu\n"
        "threads: 1\n");
  }

  // A refused run writes nothing.
  std::string refused(const std::string& set) {
    const std::string error = mistake({"train", "run.yaml", "--set", set});
    EXPECT_FALSE(fs::exists(directory_ / "out")) << set;
    return error;
  }
};

TEST_F(TrainCommandTest, RefusesWrongConfigurationsAndData) {
  EXPECT_THAT(refused("optimizer.learning_rate=1"),
              AllOf(HasSubstr("learning_rate"), HasSubstr("did you mean 'optimizer.lr'")));
  EXPECT_THAT(refused("trian.steps=4"),
              AllOf(HasSubstr("'trian'"), HasSubstr("did you mean 'train'")));
  EXPECT_THAT(refused("train.steps=many"), AllOf(HasSubstr("train.steps"), HasSubstr("'many'")));
  EXPECT_THAT(refused("train.steps=[1, 2]"), HasSubstr("train.steps"));
  EXPECT_THAT(refused("model.heads=3"), AllOf(HasSubstr("heads 3"), HasSubstr("hidden_size 32")));
  EXPECT_THAT(refused("batch.micro=3"), AllOf(HasSubstr("batch.micro"), HasSubstr("3")));
  EXPECT_THAT(refused("model.vocab_size=100"),
              AllOf(HasSubstr("vocab_size is 100"), HasSubstr("256 tokens")));
  EXPECT_THAT(refused("data.train=[{path: empty.txt}]"),
              AllOf(HasSubstr("empty.txt"), HasSubstr("empty")));
  EXPECT_THAT(refused("data.train=[{path: missing.txt}]"), HasSubstr("missing.txt"));
  EXPECT_THAT(refused("data.train=[]"), HasSubstr("data.train"));
  EXPECT_THAT(refused("data.sequence_length=65"),
              AnyOf(HasSubstr("positions"), HasSubstr("sequence_length")));
  EXPECT_THAT(refused("model.preset=nosuch"), HasSubstr("nosuch"));
  EXPECT_THAT(refused("nothing"), HasSubstr("nothing"));
  EXPECT_THAT(mistake({"train", "missing.yaml"}), HasSubstr("missing.yaml"));
  directory_.write("broken.yaml", "run: {dir: out\n");
  EXPECT_THAT(mistake({"train", "broken.yaml"}), HasSubstr("broken.yaml"));
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

TEST_F(TrainCommandTest, ChecksWithoutTraining) {
  const CommandResult outcome = run({"train", "run.yaml", "--check"});
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("check passed"));
  // 256 x 32 tokens, 64 x 32 positions, one layer of 12 x 32^2 and 13 x 32, a norm of 2 x 32:
  // 23,008.
  EXPECT_THAT(outcome.out, HasSubstr("23.01 k parameters"));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("64 tokens in 2 micro-batches; 3 steps in all"),
                                 HasSubstr("layout: 1 rank = tp 1 × cp 1 × dp 1 × pp 1"),
                                 HasSubstr("corpus"), HasSubstr("weights"), HasSubstr("optimizer"),
                                 HasSubstr("duration: 192 tokens in 3 steps"),
                                 HasSubstr("an assumed MFU of 40 %")));
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

TEST_F(TrainCommandTest, TrainsAndLeavesAWholeRun) {
  const CommandResult outcome = run({"train", "run.yaml"});
  ASSERT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(outcome.error, "");
  const fs::path out = directory_ / "out";

  std::istringstream metrics(content_of(out / "metrics.jsonl"));
  std::vector<json> records;
  for (std::string line; std::getline(metrics, line);) records.push_back(json::parse(line));
  ASSERT_EQ(records.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(records[i]["step"], i + 1);
    EXPECT_EQ(records[i]["tokens"], 64 * (i + 1));
    for (const char* key :
         {"loss", "grad_norm", "lr", "step_time_s", "tokens_per_s", "mfu", "memory_bytes"})
      EXPECT_GT(records[i].at(key).get<double>(), 0.0) << key;
    EXPECT_TRUE(records[i].contains("energy_j"));
    EXPECT_EQ(records[i].contains("valid_loss"), i > 0) << "every second step, and the last";
  }
  EXPECT_NEAR(records[0]["loss"].get<double>(), std::log(256.0), 0.3)
      << "an untrained model predicts a uniform distribution";

  const json status = json::parse(content_of(out / "status.json"));
  EXPECT_EQ(status["state"], "finished");
  EXPECT_EQ(status["step"], 3);
  EXPECT_EQ(status["loss"], records[2]["loss"]);
  EXPECT_THAT(content_of(out / "log.txt"), HasSubstr("3/3"));
  EXPECT_EQ(json::parse(content_of(out / "checkpoints" / "latest" / "config.json"))["model_type"],
            "gpt2");
  EXPECT_EQ(run({"train", "out/config.yaml", "--check"}).code, 0)
      << "the resolved configuration is a valid configuration";
  for (const auto& entry : fs::recursive_directory_iterator(out))
    EXPECT_THAT(entry.path().filename().string(),
                testing::Not(AnyOf(HasSubstr("tmp"), StartsWith("."))))
        << "a partly written file";
}

// Standard input is a pipe: it has no size and can be read only once.
TEST_F(TrainCommandTest, ReadsItsConfigurationFromAPipe) {
  const std::string command = "cd '" + directory_.path().string() + "' && cat run.yaml | '" +
                              kintsugi_binary() + "' train ";
  EXPECT_EQ(std::system((command + "/dev/stdin > pipe.txt 2>&1").c_str()), 0)
      << content_of(directory_ / "pipe.txt");
  EXPECT_EQ(json::parse(content_of(directory_ / "out" / "status.json"))["step"], 3);
  EXPECT_THAT(mistake({"train", "/dev/stdin"}), AllOf(HasSubstr("/dev/stdin"), HasSubstr("empty")));
  EXPECT_THAT(mistake({"train", "/dev/zero"}), HasSubstr("/dev/zero"));
}

TEST_F(TrainCommandTest, TheDirectoryOfARunStandsForItsLatestCheckpoint) {
  EXPECT_THAT(mistake({"generate", "--checkpoint", "out", "--prompt", "Line"}), HasSubstr("out"));
  ASSERT_EQ(run({"train", "run.yaml"}).code, 0);
  const auto scored = [&](const std::string& checkpoint) {
    const CommandResult outcome = run({"eval", "--checkpoint", checkpoint, "--text", "Line 7"});
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return outcome.out;
  };
  const std::string expected = scored("out/checkpoints/latest");
  EXPECT_EQ(scored("out"), expected);
  EXPECT_EQ(scored("out/checkpoints"), expected);
  const CommandResult text = run({"generate", "--checkpoint", "out", "--prompt", "Line",
                                  "--max-tokens", "3", "--threads", "1"});
  EXPECT_EQ(text.code, 0) << text.error;
  EXPECT_THAT(text.out, StartsWith("Line"));
  EXPECT_EQ(run({"model", "out"}).code, 0);
  fs::create_directories(directory_ / "young" / "checkpoints");
  EXPECT_THAT(mistake({"eval", "--checkpoint", "young", "--text", "Line 7"}),
              HasSubstr("no checkpoint yet"));
}

TEST_F(TrainCommandTest, AFinishedRunIsNotRepeated) {
  ASSERT_EQ(run({"train", "run.yaml"}).code, 0);
  const std::string metrics = content_of(directory_ / "out" / "metrics.jsonl");
  const CommandResult again = run({"train", "run.yaml"});
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_EQ(content_of(directory_ / "out" / "metrics.jsonl"), metrics);
  const json status = json::parse(content_of(directory_ / "out" / "status.json"));
  EXPECT_EQ(status["state"], "finished");
  EXPECT_EQ(status["step"], 3);
  EXPECT_NE(status["loss"], 0.0) << "without a new loss none may be reported";
  EXPECT_THAT(mistake({"train", "run.yaml", "--resume", "never"}),
              HasSubstr("already holds a run"));
  EXPECT_EQ(run({"train", "run.yaml", "--set", "train.steps=5"}).code, 0)
      << "but it continues with more steps";
  const std::string longer = content_of(directory_ / "out" / "metrics.jsonl");
  EXPECT_EQ(std::count(longer.begin(), longer.end(), '\n'), 5);
}

TEST_F(TrainCommandTest, TheTrainedModelContinuesText) {
  ASSERT_EQ(run({"train", "run.yaml"}).code, 0);
  const auto generate = [&](const std::string& prompt, const char* count, const char* seed) {
    return run({"generate", "--checkpoint", "out/checkpoints/latest", "--prompt", prompt,
                "--max-tokens", count, "--seed", seed, "--temperature", "1", "--threads", "1"});
  };
  const CommandResult text = generate("Line 7", "20", "1");
  EXPECT_EQ(text.code, 0) << text.error;
  EXPECT_THAT(text.out, StartsWith("Line 7"));
  EXPECT_EQ(text.out.size(), 6u + 20u + 1u);
  EXPECT_EQ(generate("Line 7", "20", "1").out, text.out);
  EXPECT_NE(generate("Line 7", "20", "2").out, text.out);
  EXPECT_THAT(mistake({"generate", "--checkpoint", "out/checkpoints/latest", "--prompt", "Line",
                       "--max-tokens", "500"}),
              HasSubstr("64 positions"));
  EXPECT_EQ(json::parse(run({"model", "out/checkpoints/latest", "--json"}).out)["config"]["layers"],
            1);
}

}  // namespace
}  // namespace kintsugi
